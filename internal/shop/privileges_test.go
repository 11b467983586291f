package shop_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/shop"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestMissingPrivileges takes privileges from the role of the service, and gives them back. Meanwhile requests are
// answered with 503, and the doctor names what is missing. Afterwards all works again.
func TestMissingPrivileges(t *testing.T) {
	address := testenv.Postgres(t)
	owner, err := sql.Open("pgx", address)
	testenv.Must(t, err)
	t.Cleanup(func() { owner.Close() })
	role, asRole := testenv.Role(t, owner, address)
	testenv.Exec(t, owner, `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO `+role)
	product := uuid.New()
	testenv.Exec(t, owner, `INSERT INTO products (id, name, price_cents, currency, supply, available)
		VALUES ($1, 'thing', 100, 'EUR', 100, 100)`, product)

	o := validOptions()
	o.DatabaseURL, o.RedisURL = asRole, testenv.Redis(t)
	a := openAppWith(t, &o)
	handler := a.Handler()
	tokens, err := shop.NewTokens(o.TokenKey)
	testenv.Must(t, err)
	token, err := tokens.Issue(keyset.NewID())
	testenv.Must(t, err)
	expect := func(path, body string, status int) {
		t.Helper()
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, parttest.NewRequest(t, http.MethodPost, path, body, "Authorization: Bearer "+token))
		if answer.Code != status {
			t.Errorf("POST %s is answered with %d %s, want %d", path, answer.Code, answer.Body, status)
		}
	}
	doctor := func(line string) {
		t.Helper()
		var out strings.Builder
		runCommand(t.Context(), []string{"doctor", "--database-url", o.DatabaseURL, "--redis-url", o.RedisURL}, &out)
		if !strings.Contains(out.String(), line) {
			t.Errorf("the doctor prints %s, want the line %q", &out, line)
		}
	}
	place := fmt.Sprintf(`{"items":[{"product_id":%q,"quantity":1}]}`, product)
	expect("/api/orders", place, http.StatusCreated)
	id := testenv.Query[string](t, owner, `SELECT id FROM orders`)
	doctor("ok    privileges")

	testenv.Exec(t, owner, `REVOKE UPDATE ON orders FROM `+role)
	doctor("FAIL  privileges   the role " + role + " lacks UPDATE on orders")
	expect("/api/orders/"+id+"/pay", "", http.StatusServiceUnavailable)
	expect("/api/orders/"+id+"/cancel", "", http.StatusServiceUnavailable)
	testenv.Exec(t, owner, `GRANT UPDATE ON orders TO `+role)

	for _, missing := range []string{"INSERT on outbox", "UPDATE on products"} {
		testenv.Exec(t, owner, `REVOKE `+missing+` FROM `+role)
		expect("/api/orders", place, http.StatusServiceUnavailable)
		doctor("lacks " + missing)
		testenv.Exec(t, owner, `GRANT `+missing+` TO `+role)
		expect("/api/orders", place, http.StatusCreated)
	}
}
