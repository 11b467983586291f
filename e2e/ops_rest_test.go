package e2e

import (
	"net/http"
	"testing"
)

func init() {
	noViolations = func(t *testing.T, p *process) {
		t.Helper()
		stats := decode[struct{ Violations []any }](t, p.operator().get("/ops/api/stats"))
		if stats.Violations == nil || len(stats.Violations) > 0 {
			t.Errorf("violations of invariants: %v, want an empty list", stats.Violations)
		}
	}
}

// TestServeHasNoFaults checks that the demo's API of faults does not exist in production, and that the operators' API
// rejects clients without the operators' token.
func TestServeHasNoFaults(t *testing.T) {
	p := anyShop(t)
	ops, c := p.operator(), p.signUp()
	ops.post(http.StatusNotFound, "/ops/api/faults/redis-wipe")
	ops.expect(http.StatusNotFound, request{method: "GET", path: "/ops/api/faults"})
	for _, r := range []request{
		{method: "GET", path: "/ops/api/stats"}, {method: "POST", path: "/ops/api/reconcile"},
		{method: "GET", path: "/ops/api/dead-letters"}, {method: "POST", path: "/ops/api/dead-letters/" + kind + "/x/redrive"},
	} {
		c.expect(http.StatusUnauthorized, r)
	}
	eventually(t, "a sweep starts, because no other sweep runs", func() bool {
		return ops.send(request{method: "POST", path: "/ops/api/reconcile"}).status == http.StatusOK
	})
	ops.get("/ops/api/dead-letters")
	ops.post(http.StatusNotFound, "/ops/api/dead-letters/"+kind+"/x/redrive")
	ops.expect(http.StatusBadRequest, request{method: "GET", path: "/ops/api/dead-letters?limit=0&cursor=x"})
}
