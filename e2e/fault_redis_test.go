package e2e

import (
	"testing"
	"time"
)

// TestRedisFaults: without Redis orders are taken as ever, and cancelled by the reconciler within its interval,
// 2 s here, and 2 s of grace.
func TestRedisFaults(t *testing.T) {
	without := bound{late: 10 * time.Second, answer: 2 * time.Second}
	runFaults(t, []fault{
		{name: "nothing", inject: func(d *deployment) { d.hold(2 * time.Second) }, bound: bound{late: 2 * time.Second, answer: 2 * time.Second}},
		{name: "killed and restarted empty", inject: func(d *deployment) {
			must(d.t, d.redis.Kill())
			d.hold(4 * time.Second)
			must(d.t, d.redis.Restart(d.t.Context()))
		}, bound: without},
	})
}
