package migrations

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestApplyWaitsForLocks lets migrations fail for some time because another session keeps a lock.
func TestApplyWaitsForLocks(t *testing.T) {
	locked := &pgconn.PgError{Code: "55P03"}
	for name, test := range map[string]struct {
		files     []string
		slow      time.Duration // the time for the first file
		lockedFor time.Duration // after that
		other     error         // after that
		want      string        // in a line for each kind of line; the lines about locks are "locked"
		err       string        // a part of the error; "": none
	}{
		"up to date":             {nil, 0, 0, nil, "the schema is up to date", ""},
		"no lock":                {[]string{"1", "2"}, 0, 0, nil, "applied 1, applied 2", ""},
		"for a while":            {[]string{"1", "2"}, 0, time.Minute, nil, "applied 1, locked, applied 2", ""},
		"after a slow migration": {[]string{"1", "2"}, time.Hour, time.Minute, nil, "applied 1, locked, applied 2", ""},
		"for too long":           {[]string{"1", "2"}, 0, time.Hour, nil, "applied 1, locked", "30 tries: end its"},
		"another mistake":        {[]string{"1", "2"}, 0, 0, errors.New("a mistake"), "", "a mistake"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pending := test.files
				unlocked := time.Now().Add(test.slow + test.lockedFor)
				var out bytes.Buffer
				err := apply(t.Context(), &out, func() (applied []string, err error) {
					if len(pending) == len(test.files) {
						<-time.After(test.slow)
					}
					if time.Now().Before(unlocked) {
						<-time.After(2 * time.Second)
						applied, pending = pending[:len(pending)-1], pending[len(pending)-1:]
						return applied, locked
					}
					if test.other != nil {
						return nil, test.other
					}
					return pending, nil
				})
				var lines []string
				for line := range strings.Lines(out.String()) {
					if strings.HasPrefix(line, "another session keeps a lock: a try every 8s, 30 in all") {
						line = "locked"
					}
					lines = append(lines, strings.TrimSpace(line))
				}
				if got := strings.Join(slices.Compact(lines), ", "); got != test.want {
					t.Errorf("apply prints %q, want %q", got, test.want)
				}
				if (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
					t.Errorf("apply returns %v, want %q", err, test.err)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		err := apply(ctx, &bytes.Buffer{}, func() ([]string, error) { return nil, locked })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("apply returns %v after %v, want that its context has ended after 1 s", err, time.Since(began))
		}
	})
}
