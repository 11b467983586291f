package e2e

import (
	"net/http"
	"testing"

	"example.com/shop/internal/faulttest"
)

func init() {
	noViolations = func(t *testing.T, p *faulttest.Process) {
		t.Helper()
		stats := faulttest.Decode[struct{ Violations []any }](t, p.Operator().Get("/ops/api/stats"))
		if stats.Violations == nil || len(stats.Violations) > 0 {
			t.Errorf("violations of invariants: %v, want an empty list", stats.Violations)
		}
	}
}

// TestServeHasNoFaults checks that the demo's API of faults does not exist in production, and that the operators' API
// rejects clients without the operators' token.
func TestServeHasNoFaults(t *testing.T) {
	p := anyShop(t)
	ops, c := p.Operator(), p.SignUp()
	ops.Post(http.StatusNotFound, "/ops/api/faults/redis-wipe")
	ops.Expect(http.StatusNotFound, faulttest.Request{Method: "GET", Path: "/ops/api/faults"})
	for _, r := range []faulttest.Request{
		{Method: "GET", Path: "/ops/api/stats"}, {Method: "POST", Path: "/ops/api/reconcile"},
		{Method: "GET", Path: "/ops/api/dead-letters"}, {Method: "POST", Path: "/ops/api/dead-letters/" + orders.Kind + "/x/redrive"},
	} {
		c.Expect(http.StatusUnauthorized, r)
	}
	faulttest.Eventually(t, "a sweep starts, because no other sweep runs", func() bool {
		return ops.Send(faulttest.Request{Method: "POST", Path: "/ops/api/reconcile"}).Status == http.StatusOK
	})
	ops.Get("/ops/api/dead-letters")
	ops.Post(http.StatusNotFound, "/ops/api/dead-letters/"+orders.Kind+"/x/redrive")
	ops.Expect(http.StatusBadRequest, faulttest.Request{Method: "GET", Path: "/ops/api/dead-letters?limit=0&cursor=x"})
}
