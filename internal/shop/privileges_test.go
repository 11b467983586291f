package shop_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/app"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/testenv"
)

// TestMissingPrivileges takes privileges from the role of the service, and gives them back. Meanwhile requests are
// answered with 503, and the doctor names what is missing. Afterwards all works again. A process that starts logs what
// it lacks.
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
	a, customer := openAppWith(t, &o), keyset.NewID()
	expect := func(path, body string, status int) {
		t.Helper()
		if answer := post(t, a, customer, path, body); answer.Code != status {
			t.Errorf("POST %s is answered with %d %s, want %d", path, answer.Code, answer.Body, status)
		}
	}
	doctor := func(line string) {
		t.Helper()
		if _, out := runDoctor(t, o.DatabaseURL, o.RedisURL); !strings.Contains(out, line) {
			t.Errorf("the doctor prints %s, want the line %q", out, line)
		}
	}
	place := fmt.Sprintf(`{"items":[{"product_id":%q,"quantity":1}]}`, product)
	expect("/api/orders", place, http.StatusCreated)
	id := testenv.Query[string](t, owner, `SELECT id FROM orders`)
	doctor("ok    privileges")

	for _, missing := range []string{"INSERT on outbox", "UPDATE on products"} {
		testenv.Exec(t, owner, `REVOKE `+missing+` FROM `+role)
		expect("/api/orders", place, http.StatusServiceUnavailable)
		doctor("lacks " + missing)
		testenv.Exec(t, owner, `GRANT `+missing+` TO `+role)
		expect("/api/orders", place, http.StatusCreated)
	}

	testenv.Exec(t, owner, `REVOKE UPDATE ON orders FROM `+role)
	doctor("FAIL  privileges   the role " + role + " lacks UPDATE on orders")
	expect("/api/orders/"+id+"/pay", "", http.StatusServiceUnavailable)
	expect("/api/orders/"+id+"/cancel", "", http.StatusServiceUnavailable)

	testenv.Must(t, a.Redis.Set(t.Context(), "delay:{order.cancel:0}:attempts", "foreign", 0).Err())
	var log testenv.LogBuffer
	a.Log = slog.New(slog.NewTextHandler(&log, nil))
	runs := 100 * time.Millisecond
	testenv.Eventually(t, "the start of a process logs what the servers refuse", func() bool {
		ctx, stop := context.WithTimeout(t.Context(), runs)
		defer stop()
		ln, err := app.Listen("127.0.0.1:0")
		testenv.Must(t, err)
		testenv.Must(t, a.Run(ctx, ln))
		runs *= 2 // a slow machine needs longer to look
		return strings.Contains(log.String(), "lacks UPDATE on orders") &&
			strings.Contains(log.String(), ":attempts is a string")
	})
}
