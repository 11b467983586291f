package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"example.com/shop/internal/postgres"
)

// TestUnavailable checks codes of PostgreSQL's appendix of errors. Each of them is the fault of the statement or of a
// row, or an outage.
func TestUnavailable(t *testing.T) {
	const faults = "22000 22003 22012 22P02 23000 23502 23505 23514 23P01 42601 42703 42804 42P07 42P18 P0001"
	const outages = "08000 08006 0A000 21000 25001 25006 25P03 26000 28000 28P01 2BP01 2F003 34000 3D000 3F000 " +
		"40001 40P01 42501 42704 42P01 44000 53100 53200 53300 54001 55006 55P03 57014 57P01 57P05 58030 72000 F0000 HV000 P0000 " +
		"P0002 P0004 XX000 XX001"
	for codes, want := range map[string]bool{faults: false, outages: true} {
		for _, code := range strings.Fields(codes) {
			err := fmt.Errorf("cancel: %w", &pgconn.PgError{Code: code})
			if got := postgres.Unavailable(err); got != want {
				t.Errorf("SQLSTATE %s: Unavailable returns %v, want %v", code, got, want)
			}
			if got := postgres.Classify(err); (got == postgres.Rejected) == want {
				t.Errorf("SQLSTATE %s: Classify returns %v, want Rejected: %v", code, got, !want)
			}
		}
	}
	if !postgres.Unavailable(fmt.Errorf("reserve: %w", postgres.ErrBusy)) {
		t.Error("a full KeyGate is not a reason to try later")
	}
}

// TestClassify checks after which errors a statement on other rows may succeed.
func TestClassify(t *testing.T) {
	answer := func(severity, code string) error {
		return fmt.Errorf("cancel: %w", &pgconn.PgError{SeverityUnlocalized: severity, Code: code})
	}
	for name, test := range map[string]struct {
		err  error
		want postgres.Cause
	}{
		"a row":                 {answer("ERROR", "23514"), postgres.Rejected},
		"a missing privilege":   {answer("ERROR", "42501"), postgres.Postponed},
		"any code of a trigger": {answer("ERROR", "57P01"), postgres.Postponed},
		"a server that stops":   {answer("FATAL", "57P01"), postgres.Outage},
		"an idle transaction":   {answer("FATAL", "25P03"), postgres.Outage},
		"a broken server":       {answer("PANIC", "XX000"), postgres.Outage},
		"a read-only server":    {answer("ERROR", "25006"), postgres.Outage},
		"a full disk":           {answer("ERROR", "53100"), postgres.Outage},
		"no server":             {context.DeadlineExceeded, postgres.Outage},
		"a closed pool":         {errors.New("sql: database is closed"), postgres.Unknown},
		"no error":              {nil, postgres.Unknown},
	} {
		if got := postgres.Classify(test.err); got != test.want {
			t.Errorf("%s: Classify returns %v, want %v", name, got, test.want)
		}
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
