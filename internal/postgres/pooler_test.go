package postgres_test

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/testenv"
)

// TestPgBouncer connects through PgBouncer in transaction mode. Open accepts its configuration in the file
// pgbouncer.ini, and says what to do if a part of it is missing. Migrations need a session of their own.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile("pgbouncer.ini")
	testenv.Must(t, err)
	database := testenv.Postgres(t)
	without := func(text string) string {
		if !strings.Contains(string(file), text) {
			t.Fatalf("pgbouncer.ini lacks %s", text)
		}
		return testenv.PgBouncer(t, database, strings.Replace(string(file), text, "", 1))
	}
	pooled := testenv.PgBouncer(t, database, string(file))
	const (
		describes = "&default_query_exec_mode=cache_describe"
		prepares  = "&default_query_exec_mode=cache_statement"
	)
	oneSession := testenv.PgBouncer(t, database, string(file)+"max_db_connections = 1\n")
	for name, test := range map[string]struct{ url, want string }{
		"prepared statements":    {pooled, "add default_query_exec_mode=cache_describe"},
		"statements not kept":    {pooled + prepares, "the pooler does not keep prepared statements"},
		"a setting is unknown":   {without("synchronous_commit, ") + describes, "a pooler must ignore the settings"},
		"a setting has no value": {without(`SET lock_timeout = "3s"; `) + describes, "lock_timeout is 0, want 3s"},
		"a plan's setting":       {without(`SET enable_seqscan = off; `) + describes, "enable_seqscan is on, want off"},
	} {
		_, err := postgres.Open(t.Context(), test.url, "test", 2, postgres.IndexPlans, nil)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: the error is %v, want one that contains %q", name, err, test.want)
		}
	}

	for database, enough := range map[string]bool{oneSession: false, pooled: true} {
		db, err := postgres.Open(t.Context(), database+describes, "test", 3, postgres.IndexPlans, nil)
		testenv.Must(t, err)
		err = postgres.CheckSessions(t.Context(), pool(t, db), 3)
		if enough && err != nil || !enough && (err == nil || !strings.Contains(err.Error(), "got 1 within")) {
			t.Errorf("three sessions are wanted of %s: %v", database, err)
		}
	}

	session, err := postgres.Connect(pooled + describes)
	testenv.Must(t, err)
	defer session.Close()
	err = session.PingContext(t.Context())
	if err == nil || !strings.Contains(err.Error(), "migrate with the address of") {
		t.Errorf("a session for migrations fails with %v, want that it says how to migrate", err)
	}

	direct := open(t, database)
	testenv.Exec(t, direct, `CREATE TABLE numbers (n int)`)
	const conns, runs = 4, 20
	db, err := postgres.Open(t.Context(), pooled+describes, "test", conns, postgres.IndexPlans, nil)
	testenv.Must(t, err)
	pool(t, db)
	var callers errgroup.Group
	for range 2 * conns { // so that each connection uses each session of the server
		callers.Go(func() error {
			for n := range runs {
				err := postgres.Transact(t.Context(), db, func(tx *postgres.Tx) error {
					tx.Queue(`INSERT INTO numbers SELECT unnest($1::int[])`, []int{n, n})
					tx.Queue(`DELETE FROM numbers WHERE ctid = (SELECT ctid FROM numbers
						WHERE n = $1 LIMIT 1 FOR UPDATE SKIP LOCKED)`, n)
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := callers.Wait(); err != nil {
		t.Error(err)
	}
	if n := testenv.Query[int](t, direct, `SELECT count(*) FROM numbers`); n != 2*conns*runs {
		t.Errorf("%d rows, want %d", n, 2*conns*runs)
	}
}
