package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
)

// TestWrongDescriptions checks that a fault test names the field in which the description of its service is wrong, and
// does not wait in vain for something that the field decides.
func TestWrongDescriptions(t *testing.T) {
	t.Parallel()
	d := orders.Deploy(t, faulttest.Needs{Processes: []string{"api", "worker"}})
	without := func(column string) func(s *faulttest.Service) {
		return func(s *faulttest.Service) { s.Rows = strings.Replace(s.Rows, column, column+"_", 1) }
	}
	tests := []struct {
		name, field string // of the description
		spoil       func(s *faulttest.Service)
	}{
		{"another variable", "Timeout", func(s *faulttest.Service) { s.Timeout = "TIME_TO_PAY" }},
		{"another option", "Bounds.Env", func(s *faulttest.Service) { s.Bounds.Env = []string{"SHOP_MAX_UNITS=1"} }},
		{"another table", "Table", func(s *faulttest.Service) { s.Table = "products" }},
		{"no deadline", "Rows", without("AS deadline")},
		{"no key", "Rows", without("AS key")},
		{"another key", "Rows", func(s *faulttest.Service) {
			s.Rows = strings.Replace(s.Rows, "idempotency_key", "id::text", 1)
		}},
		{"another status", "InsertBatch", func(s *faulttest.Service) {
			s.Rows = strings.Replace(s.Rows, "ELSE status", "ELSE 'open'", 1)
		}},
		{"no rows", "InsertBatch", func(s *faulttest.Service) { s.InsertBatch = `SELECT id FROM orders` }},
		{"nothing locked", "Shared.Lock", func(s *faulttest.Service) { s.Shared.Lock = `SELECT $1::text[] LIMIT 0` }},
		{"no syntax", "Shared.Supplies", func(s *faulttest.Service) { s.Shared.Supplies = `SELECT id FROM` }},
		{"other names", "Shared.Units", func(s *faulttest.Service) {
			s.Shared.Supplies = `SELECT name, available FROM products`
		}},
		{"only beans", "Bodies", func(s *faulttest.Service) { s.Bodies = s.Bodies[:1] }},
		{"no rushes", "Shared.Rushes", func(s *faulttest.Service) { s.Shared.Rushes = 0 }},
		{"fewer rushes", "Shared.Units", func(s *faulttest.Service) { s.Shared.Rushes++ }},
		{"another bound", "Bounds.Exceeded", func(s *faulttest.Service) {
			s.Bounds.Exceeded = `SELECT count(*) FROM nothing`
		}},
		{"another answer", "SignUp", func(s *faulttest.Service) { s.SignUp = "/api/orders" }},
		{"no other users", "OtherSignUp", func(s *faulttest.Service) { s.OtherSignUp = "/api/drivers" }},
		{"another path", "Create", func(s *faulttest.Service) {
			s.Create = func(string, string) faulttest.Request {
				return faulttest.Request{Method: http.MethodPost, Path: "/api/order"}
			}
		}},
		{"a new key each time", "Keyed", func(s *faulttest.Service) {
			create := s.Create
			s.Create = func(body, _ string) faulttest.Request { return create(body, "") }
		}},
		{"another kind", "Kind", func(s *faulttest.Service) { s.Kind = "order.cancels" }},
		{"another collection", "Collection", func(s *faulttest.Service) { s.Collection = "/api/products" }},
		{"nothing decoded", "Decode", func(s *faulttest.Service) {
			s.Decode = func(body []byte) (row faulttest.Row, err error) { return row, json.Unmarshal(body, &row) }
		}},
		{"another user", "Actions[Confirm]", func(s *faulttest.Service) {
			s.Actions[faulttest.Confirm] = func(row string, _ []byte) faulttest.Request {
				return faulttest.Request{Method: http.MethodPost, Path: row + "/pay", Other: true}
			}
		}},
		{"another operation", "Actions[Cancel]", func(s *faulttest.Service) {
			s.Actions[faulttest.Cancel] = faulttest.Post("revoke")
		}},
	}
	if err := d.Check(shoptest.Service("..")); err != nil {
		t.Errorf("the description of orders is found to be wrong: %v", err)
	}
	for _, test := range tests {
		s := shoptest.Service("..")
		test.spoil(s)
		if err := d.Check(s); err == nil || !strings.Contains(err.Error(), " wrong: "+test.field+": ") {
			t.Errorf("%s: the error is %v, want one in the field %s", test.name, err, test.field)
		}
	}
}
