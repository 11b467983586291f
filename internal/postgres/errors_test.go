package postgres_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"example.com/shop/internal/postgres"
)

// TestUnavailable checks codes of errors of the server (true) and of the statement (false). The database may not be
// away if a wait for a lock or the statement took too long.
func TestUnavailable(t *testing.T) {
	for code, want := range map[string]bool{
		"08006": true, "40P01": true, "53300": true, "57014": true, "57P01": true, "55P03": true, "25006": true, "25P03": true, "58030": true,
		"42P01": true, "3F000": true, "42704": true, "23514": false, "22003": false, "42703": false, "XX000": false, "": false,
	} {
		if got := postgres.Unavailable(fmt.Errorf("cancel: %w", &pgconn.PgError{Code: code})); got != want {
			t.Errorf("SQLSTATE %q: Unavailable returns %v, want %v", code, got, want)
		}
		want = want && code != "57014" && code != "55P03"
		if got := postgres.Away(&pgconn.PgError{Code: code}); got != want {
			t.Errorf("SQLSTATE %q: Away returns %v, want %v", code, got, want)
		}
	}
	if busy := fmt.Errorf("reserve: %w", postgres.ErrBusy); !postgres.Unavailable(busy) || postgres.Away(busy) {
		t.Error("a full KeyGate is not a reason to try later, or the database counts as away")
	}
}

func TestRetryDeadlock(t *testing.T) {
	deadlock, otherError := &pgconn.PgError{Code: "40P01"}, &pgconn.PgError{Code: "23514"}
	for name, test := range map[string]struct {
		errs []error // of the first, second … run
		runs int
		want error
	}{
		"success":            {[]error{nil}, 1, nil},
		"other error":        {[]error{otherError}, 1, otherError},
		"deadlock once":      {[]error{deadlock, nil}, 2, nil},
		"deadlock each time": {[]error{deadlock, deadlock, deadlock}, 3, deadlock},
	} {
		runs := 0
		err := postgres.RetryDeadlock(func() error {
			runs++
			return test.errs[runs-1]
		})
		if !errors.Is(err, test.want) || runs != test.runs {
			t.Errorf("%s: RetryDeadlock returns %v after %d runs, want %v after %d", name, err, runs, test.want,
				test.runs)
		}
	}
}

// TestRejected checks that only answers of the server about the statement are rejections.
func TestRejected(t *testing.T) {
	for code, want := range map[string]bool{"22021": true, "23505": true, "54000": true, "40P01": false,
		"57014": false, "53300": false} {
		if got := postgres.Rejected(fmt.Errorf("store: %w", &pgconn.PgError{Code: code})); got != want {
			t.Errorf("SQLSTATE %q: Rejected returns %v, want %v", code, got, want)
		}
	}
	if postgres.Rejected(errors.New("sql: database is closed")) || postgres.Rejected(nil) {
		t.Error("Rejected reports errors that are not the server's")
	}
}
