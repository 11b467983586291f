package migrations

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"time"

	"github.com/sethvargo/go-retry"

	"example.com/shop/internal/postgres"
)

// Apply is [UpAll], and prints the names of the migrations. While another session keeps a lock that a migration needs,
// Apply tries again, for five minutes.
func Apply(ctx context.Context, db *sql.DB, out io.Writer, others ...Set) error {
	return apply(ctx, out, func() ([]string, error) { return UpAll(ctx, db, others...) })
}

const (
	// applyPause is the time after which a migration that did not get a lock is tried again. Meanwhile the requests
	// that waited behind it are served.
	applyPause = 8 * time.Second
	// applyTries is the number of tries. They take five minutes in all, because each one waits two seconds for the
	// lock, and a report or a dump that reads the table may take minutes.
	applyTries = 30
)

// apply calls up, which applies migrations, and prints their names. If another session keeps a lock that a migration
// needs, apply calls up again.
func apply(ctx context.Context, out io.Writer, up func() ([]string, error)) error {
	changed := false
	tries := retry.WithMaxRetries(applyTries-1, retry.NewConstant(applyPause))
	err := retry.Do(ctx, tries, func(context.Context) error {
		applied, err := up()
		for _, name := range applied {
			changed = true
			fmt.Fprintln(out, "applied", name)
		}
		if postgres.LockTimedOut(err) {
			fmt.Fprintf(out, "another session keeps a lock: a try every %v, %d in all (%v)\n",
				applyPause, applyTries, err)
			return retry.RetryableError(err)
		}
		return err
	})
	if postgres.LockTimedOut(err) {
		return fmt.Errorf("%w: another session has kept a lock for %d tries: end its transaction, then migrate again",
			err, applyTries)
	}
	if err == nil && !changed {
		fmt.Fprintln(out, "the schema is up to date")
	}
	return err
}
