package order_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"example.com/shop/internal/order"
)

// TestReadDurability changes the default of synchronous_commit, which a database and a role may have of their own, and
// looks at it with a role that may do nothing.
func TestReadDurability(t *testing.T) {
	s := newShop(t)
	address, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	database := strings.TrimPrefix(address.Path, "/")
	role := strings.Replace(database, "shop_test_", "role_", 1)
	s.exec(t, `CREATE ROLE `+role+` LOGIN PASSWORD 'secret'`)
	t.Cleanup(func() {
		if _, err := s.db.ExecContext(context.Background(), `DROP ROLE `+role); err != nil {
			t.Error(err)
		}
	})
	address.User = url.UserPassword(role, "secret")

	for _, change := range []struct{ statement, want string }{
		{`ALTER DATABASE ` + database + ` SET synchronous_commit = off`, "off"},
		{`ALTER ROLE ` + role + ` SET synchronous_commit = remote_write`, "remote_write"},
		{`ALTER ROLE ` + role + ` IN DATABASE ` + database + ` SET synchronous_commit = local`, "local"},
	} {
		s.exec(t, change.statement)
		got, err := order.ReadDurability(t.Context(), address.String())
		if err != nil {
			t.Fatal(err)
		}
		want := order.Durability{
			Fsync: query[string](t, s, `SHOW fsync`), FullPageWrites: query[string](t, s, `SHOW full_page_writes`),
			SynchronousCommit: change.want,
		}
		if got != want {
			t.Errorf("after %s: %+v, want %+v", change.statement, got, want)
		}
	}
}
