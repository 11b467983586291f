package cli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestMigrateWaitsForLocks lets migrations fail for some time because another session keeps a lock.
func TestMigrateWaitsForLocks(t *testing.T) {
	locked := &pgconn.PgError{Code: "55P03"}
	for name, test := range map[string]struct {
		lockedFor time.Duration
		other     error // after that
		want      string
		err       string // a part of the error; "": none
	}{
		"no lock":         {0, nil, "applied 1\napplied 2\n", ""},
		"for a while":     {time.Minute, nil, "applied 1\nanother session keeps a lock", ""},
		"for too long":    {time.Hour, nil, "applied 1\nanother session keeps a lock", "has kept a lock for 5m0s: end its transaction"},
		"another mistake": {0, errors.New("a mistake"), "", "a mistake"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				pending := []string{"1", "2"}
				var out bytes.Buffer
				err := migrate(t.Context(), &out, func() (applied []string, err error) {
					switch {
					case time.Since(began) >= test.lockedFor && test.other != nil:
						return nil, test.other
					case time.Since(began) >= test.lockedFor:
						applied, pending = pending, nil
					default:
						time.Sleep(2 * time.Second)
						applied, pending, err = pending[:len(pending)-1], pending[len(pending)-1:], locked
					}
					return applied, err
				})
				if !strings.HasPrefix(out.String(), test.want) || test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
					t.Errorf("migrate prints %q, and returns %v; want %q and %q", &out, err, test.want, test.err)
				}
				if limit := migratePatience + 2*migrateAgain; time.Since(began) > limit {
					t.Errorf("migrate took %v, want at most %v", time.Since(began), limit)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		err := migrate(ctx, &bytes.Buffer{}, func() ([]string, error) { return nil, locked })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("migrate returns %v after %v, want that its context has ended after 1 s", err, time.Since(began))
		}
	})
}
