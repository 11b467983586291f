package postgres_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/testenv"
)

// TestOpenFails checks that the error of Open names the address or the mistake, and never the password.
func TestOpenFails(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	closed := listener.Addr().String()
	listener.Close()

	for name, test := range map[string]struct{ url, want string }{
		"no server":   {"postgres://app:topsecret@" + closed + "/app", closed},
		"an @":        {"postgres://app:p@topsecret@" + closed + "/app", "percent-encoded"},
		"a slash":     {"postgres://app:1/topsecret@" + closed + "/app", "percent-encoded"},
		"invalid URL": {"postgres://app:topsecret@" + closed + ":x/app", "database URL"},
		"exec mode": {"postgres://app:topsecret@" + closed + "/app?default_query_exec_mode=exec",
			"want cache_statement or cache_describe"},
	} {
		t.Run(name, func(t *testing.T) {
			started := time.Now()
			_, err := postgres.Open(t.Context(), test.url, "test", 1, nil, nil)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "topsecret") {
				t.Errorf("the error is %v, want one that contains %q, and not the password", err, test.want)
			}
			if took := time.Since(started); took > 10*time.Second {
				t.Errorf("Open took %v, want at most 10 s", took)
			}
		})
	}
}

// TestSessionSettings changes the defaults of the database: the sessions of Open keep their own settings.
func TestSessionSettings(t *testing.T) {
	address := testenv.Postgres(t)
	db := open(t, address)
	name := testenv.Query[string](t, db, `SELECT current_database()`)
	for _, setting := range []string{
		"synchronous_commit = off", "client_min_messages = error", "idle_session_timeout = 500", "default_transaction_isolation = 'serializable'", "timezone = 'Asia/Tokyo'",
		"jit = on",
	} {
		testenv.Exec(t, db, `ALTER DATABASE `+name+` SET `+setting)
	}
	db = open(t, address)
	for setting, want := range map[string]string{
		"application_name": "test", "synchronous_commit": "on", "client_min_messages": "warning", "idle_session_timeout": "0",
		"transaction_isolation": "read committed", "statement_timeout": "5s", "lock_timeout": "3s", "TimeZone": "UTC",
		"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3",
		"jit": "off",
	} {
		if got := testenv.Query[string](t, db, `SELECT current_setting($1)`, setting); got != want {
			t.Errorf("%s is %s, want %s", setting, got, want)
		}
	}
	without, err := postgres.Open(t.Context(), address, "test", 1, nil, nil)
	testenv.Must(t, err)
	if got := testenv.Query[string](t, pool(t, without), `SHOW jit`); got != "on" {
		t.Errorf("without IndexPlans jit is %s, want the database's on", got)
	}
	if zone := testenv.Query[time.Time](t, db, `SELECT now()`).Location(); zone != time.UTC {
		t.Errorf("a time that PostgreSQL returns is in zone %v, want UTC", zone)
	}
}

// TestOpenWithoutRights connects as a role that has no rights but to log in, so it cannot read the server's timeline.
func TestOpenWithoutRights(t *testing.T) {
	address := testenv.Postgres(t)
	db := open(t, address)
	role, asRole := testenv.Role(t, db, address)
	testenv.Exec(t, db, `REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC`)
	if got := testenv.Query[string](t, open(t, asRole), `SELECT current_user`); got != role {
		t.Errorf("the session is one of %s, want %s", got, role)
	}
}

// TestRereadURL ends a session after its URL was changed. The next session has the new user. While the URL cannot be
// read, the user stays.
func TestRereadURL(t *testing.T) {
	address := testenv.Postgres(t)
	role, changed := testenv.Role(t, open(t, address), address)
	broken := errors.New("the file is away")
	db, err := postgres.Open(t.Context(), address, "test", 1, nil, func() (string, error) { return changed, broken })
	testenv.Must(t, err)
	pool := pool(t, db)
	before := testenv.Query[string](t, pool, `SELECT current_user`)
	for _, want := range []string{before, role} {
		_, _ = pool.ExecContext(t.Context(), `SELECT pg_terminate_backend(pg_backend_pid())`)
		if got := testenv.Query[string](t, pool, `SELECT current_user`); got != want {
			t.Errorf("with the error %v the user of a new session is %s, want %s", broken, got, want)
		}
		broken = nil
	}
}
