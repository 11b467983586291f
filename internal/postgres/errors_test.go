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

// TestUnavailable checks all codes of PostgreSQL's appendix of errors, by their classes. Each of them is the fault of
// the statement or of a row, or an outage.
func TestUnavailable(t *testing.T) {
	faults := map[string]string{
		"22": "000 001 002 003 004 005 007 008 009 00B 00C 00D 00F 00G 00H 00L 00M 00N 00S 00T 010 011 012 013 " +
			"014 015 016 018 019 01B 01E 01F 01G 01W 01X 021 022 023 024 025 026 027 02E 02G 02H 030 031 032 033 " +
			"034 035 036 037 038 039 03A 03B 03C 03D 03E 03F 03G P01 P02 P03 P04 P05 P06",
		"23": "000 001 502 503 505 514 P01",
		"42": "000 601 602 611 622 701 702 703 710 712 723 725 803 804 809 830 846 883 8C9 939 P02 P03 P04 P05 " +
			"P06 P07 P08 P09 P10 P11 P12 P13 P14 P15 P16 P17 P18 P19 P20 P21 P22",
		"P0": "001",
	}
	outages := map[string]string{
		"00": "000",
		"01": "000 003 004 006 007 008 00C P01",
		"02": "000 001",
		"03": "000",
		"08": "000 001 003 004 006 007 P01",
		"09": "000",
		"0A": "000",
		"0B": "000",
		"0F": "000 001",
		"0L": "000 P01",
		"0P": "000",
		"0Z": "000 002",
		"20": "000",
		"21": "000",
		"24": "000",
		"25": "000 001 002 003 004 005 006 007 008 P01 P02 P03 P04",
		"26": "000",
		"27": "000",
		"28": "000 P01",
		"2B": "000 P01",
		"2D": "000",
		"2F": "000 002 003 004 005",
		"34": "000",
		"38": "000 001 002 003 004",
		"39": "000 001 004 P01 P02 P03",
		"3B": "000 001",
		"3D": "000",
		"3F": "000",
		"40": "000 001 002 003 P01",
		"42": "501 704 P01",
		"44": "000",
		"53": "000 100 200 300 400",
		"54": "000 001 011 023",
		"55": "000 006 P02 P03 P04",
		"57": "000 014 P01 P02 P03 P04 P05",
		"58": "000 030 P01 P02",
		"72": "000",
		"F0": "000 001",
		"HV": "000 001 002 004 005 006 007 008 009 00A 00B 00C 00D 00J 00K 00L 00M 00N 00P 00Q 00R 010 014 021 " +
			"024 090 091",
		"P0": "000 002 003 004",
		"XX": "000 001 002",
	}
	n := 0
	for _, test := range []struct {
		codes map[string]string
		want  bool
	}{{faults, false}, {outages, true}} {
		for class, rest := range test.codes {
			for _, code := range strings.Fields(rest) {
				n++
				err := fmt.Errorf("cancel: %w", &pgconn.PgError{Code: class + code})
				if got := postgres.Unavailable(err); got != test.want {
					t.Errorf("SQLSTATE %s%s: Unavailable returns %v, want %v", class, code, got, test.want)
				}
				if got := postgres.Classify(err); (got == postgres.Rejected) == test.want {
					t.Errorf("SQLSTATE %s%s: Classify returns %v, want Rejected: %v", class, code, got, !test.want)
				}
			}
		}
	}
	if n != 261 {
		t.Errorf("the tables have %d codes, want all 261 of the appendix", n)
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
