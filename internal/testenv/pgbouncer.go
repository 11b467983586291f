package testenv

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"example.com/shop/internal/devstack"
)

// PgBouncer starts a PgBouncer for one test, before a database that [Postgres] returned, and returns the URL of the
// database through it. config is the content of pgbouncer.ini, in which the database is "shop = host=db dbname=shop".
// PgBouncer stops when the test ends.
func PgBouncer(t testing.TB, databaseURL, config string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	Must(t, err)
	target := fmt.Sprintf("host=%s port=%s dbname=%s user=%s",
		u.Hostname(), u.Port(), strings.TrimPrefix(u.Path, "/"), u.User.Username())
	if password, ok := u.User.Password(); ok {
		target += " password=" + password
	}
	p, err := devstack.StartPgBouncer(t.Context(), t.TempDir(),
		strings.Replace(config, "host=db dbname=shop", target, 1))
	if errors.Is(err, devstack.ErrNoPgBouncer) {
		Skip(t, "pgbouncer", err.Error())
	}
	Must(t, err)
	t.Cleanup(func() { Must(t, p.Stop()) })
	return "postgres://test@" + p.Addr() + "/shop?sslmode=disable"
}
