package postgres_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/testenv"
)

// TestReadDurability sets synchronous_commit for a database, for a role, and for the role in the database, and reads it
// as that role, which has no rights but to log in.
func TestReadDurability(t *testing.T) {
	databaseURL := testenv.Postgres(t)
	db := open(t, databaseURL)
	address, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	database := strings.TrimPrefix(address.Path, "/")
	role := "role_of_" + database
	testenv.Exec(t, db, `CREATE ROLE `+role+` LOGIN PASSWORD 'secret'`)
	t.Cleanup(func() {
		if _, err := db.ExecContext(context.Background(), `DROP ROLE `+role); err != nil {
			t.Error(err)
		}
	})
	address.User = url.UserPassword(role, "secret")
	testenv.Exec(t, db, `REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC`) // which the check of the timeline calls

	for _, change := range []struct{ statement, want string }{
		{`ALTER DATABASE ` + database + ` SET synchronous_commit = off`, "off"},
		{`ALTER ROLE ` + role + ` SET synchronous_commit = remote_write`, "remote_write"},
		{`ALTER ROLE ` + role + ` IN DATABASE ` + database + ` SET synchronous_commit = local`, "local"},
	} {
		testenv.Exec(t, db, change.statement)
		got, err := postgres.ReadDurability(t.Context(), address.String())
		if err != nil {
			t.Fatal(err)
		}
		want := postgres.Durability{
			Fsync: testenv.Query[string](t, db, `SHOW fsync`), FullPageWrites: testenv.Query[string](t, db, `SHOW full_page_writes`),
			SynchronousCommit: change.want,
		}
		if got != want {
			t.Errorf("after %s: ReadDurability returns %+v, want %+v", change.statement, got, want)
		}
	}
}
