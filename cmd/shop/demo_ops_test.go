package main

import (
	"log/slog"
	"testing"
	"time"

	"example.com/shop/internal/demo"
	"example.com/shop/internal/testenv"
)

// TestHeadMatchesGetForOperators is [TestHeadMatchesGet] for an operator of the demo, which has all parts.
func TestHeadMatchesGetForOperators(t *testing.T) {
	c := demoCommand{OrderTimeout: time.Minute}
	o := c.options()
	o.DatabaseURL, o.RedisURL = testenv.Postgres(t), "redis://127.0.0.1:1/0"
	d := &demoRun{options: o, url: "http://127.0.0.1:1", log: slog.New(slog.DiscardHandler)}
	defer d.close()
	testenv.Must(t, d.openParts(t.Context()))
	a := openAppWith(t, o)
	d.addTo(a.Process, demo.Add(a.Process, nil, nil))
	checkHeadMatchesGet(t, a, o.Ops.OpsToken)
}
