// Package migrations holds the database schema as numbered SQL files and applies them.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
)

//go:embed *.sql
var files embed.FS

// VersionError means that the database's migrations are not those of this binary.
//
// The error compares all migrations, not only the newest ones, because a part can be left out of a binary, or added later
// with a number below the newest. If the database has a migration that the binary lacks, that is an error only if the
// binary has no newer one. Otherwise the migration belongs to a part that was left out.
type VersionError struct {
	Have, Want int64   // the newest migrations of the database and of the binary; 0 is a database without a schema
	Missing    []int64 // the binary's migrations that the database lacks, in ascending order
	Unknown    []int64 // the database's migrations that the binary lacks, in ascending order
}

// IsNewer reports whether the database has all migrations of the binary, and a newer one. The binary works with such a
// database.
func (e *VersionError) IsNewer() bool { return e.Have > e.Want && len(e.Missing) == 0 }

func (e *VersionError) Error() string {
	if e.Have <= e.Want {
		return fmt.Sprintf("the database lacks %s of this binary: run `shop migrate`", list(e.Missing))
	}
	newer := fmt.Sprintf("the database has schema version %d, newer than version %d of this binary", e.Have, e.Want)
	if len(e.Missing) > 0 {
		return fmt.Sprintf("%s, and lacks %s of this binary: use a shop binary that has all of them", newer, list(e.Missing))
	}
	return newer + ": use a newer shop binary"
}

// list returns "migration 5" or "migrations 4, 5 and 6". There is at least one version.
func list(versions []int64) string {
	words := make([]string, len(versions))
	for i, v := range versions {
		words[i] = strconv.FormatInt(v, 10)
	}
	last := len(words) - 1
	if last == 0 {
		return "migration " + words[0]
	}
	return "migrations " + strings.Join(words[:last], ", ") + " and " + words[last]
}

// Up applies the migrations that the database lacks, and returns the names of the files that it applied. If a file fails, it
// returns the names of those before it. It also applies those that are older than the newest migration of the database.
//
// If a statement waits for a lock of another session for longer than two seconds, Up returns the error lock_not_available
// (55P03). Call it again after some time.
//
// Several processes may call it at the same time: one of them migrates, and the others wait for it, for at most five
// minutes. If the database has a migration that is newer than all of the binary's, Up changes nothing and returns a
// *[VersionError].
func Up(ctx context.Context, db *sql.DB) ([]string, error) { return up(ctx, db, files) }

// Check compares the database's migrations with the binary's. If the database lacks one, or has one that is newer than all
// of the binary's, Check returns a *[VersionError]. It changes nothing in the database, unlike goose's own check, which
// creates goose's table.
func Check(ctx context.Context, db *sql.DB) error { return check(ctx, db, files) }

func up(ctx context.Context, db *sql.DB, files fs.FS) ([]string, error) {
	err := check(ctx, db, files)
	difference, ok := errors.AsType[*VersionError](err)
	if !ok || difference.Have > difference.Want {
		return nil, err
	}
	provider, err := newProvider(db, files)
	if err != nil {
		return nil, err
	}
	results, err := provider.Up(ctx)
	if err != nil {
		if partial, ok := errors.AsType[*goose.PartialError](err); ok {
			results = partial.Applied
		}
		err = explain(err, difference.Unknown)
	}
	var applied []string
	for _, r := range results {
		applied = append(applied, r.Source.Path)
	}
	return applied, err
}

// duplicateTable is the SQLSTATE of a statement that creates a table or an index that exists already.
const duplicateTable = "42P07"

// explain returns the error of a migration with the name of the file. If the file creates what exists already, one of the
// unknown migrations may have created it. Then the release with that migration must apply its other migrations first.
func explain(err error, unknown []int64) error {
	if partial, ok := errors.AsType[*goose.PartialError](err); ok {
		err = fmt.Errorf("%s: %w", partial.Failed.Source.Path, partial.Err)
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == duplicateTable && len(unknown) > 0 {
		return fmt.Errorf("migrate: %w: the database has %[2]s, unlike this binary: run `shop migrate` of the last release with %[2]s, then of this one",
			err, list(unknown))
	}
	return fmt.Errorf("migrate: %w", err)
}

func check(ctx context.Context, db *sql.DB, files fs.FS) error {
	provider, err := newProvider(db, files)
	if err != nil {
		return err
	}
	have, err := applied(ctx, db)
	if err != nil {
		return fmt.Errorf("read the schema version: %w", err)
	}
	var want []int64
	for _, source := range provider.ListSources() {
		want = append(want, source.Version)
	}
	e := &VersionError{Have: newest(have), Want: newest(want), Missing: without(want, have), Unknown: without(have, want)}
	if len(e.Missing) == 0 && e.Have <= e.Want {
		return nil
	}
	return e
}

// newProvider reads the names of the files, and does not use the database.
func newProvider(db *sql.DB, files fs.FS) (*goose.Provider, error) {
	// Poll for the lock, once a second. A session that blocks on the lock is in a transaction, and CREATE INDEX
	// CONCURRENTLY in a migration waits for that transaction, so both would wait for ever.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return nil, fmt.Errorf("set up the lock for migrations: %w", err)
	}
	provider, err := goose.NewProvider(database.DialectPostgres, db, files,
		goose.WithSessionLocker(impatient{locker}), goose.WithAllowOutofOrder(true))
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	return provider, nil
}

// impatient makes the statements of migrations wait at most two seconds for a lock. While a statement that changes a table
// waits for the end of a transaction that only reads it, all later statements on the table wait, too. A longer time would stop
// the service for longer. An autovacuum of the table gives way only after deadlock_timeout, which is a second by default: with
// a shorter time, a migration would not get the lock.
//
// CREATE INDEX CONCURRENTLY and DROP INDEX CONCURRENTLY wait for transactions without stopping others. A migration sets the
// time to 0 for them, and to two seconds after them. A migration without a transaction may fail after any of its statements,
// so each of them may be repeated.
type impatient struct{ lock.SessionLocker }

// SessionLock is called before the migrations, with the connection that executes them.
func (l impatient) SessionLock(ctx context.Context, conn *sql.Conn) error {
	if err := l.SessionLocker.SessionLock(ctx, conn); err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, `SET lock_timeout = '2s'`); err != nil {
		return errors.Join(err, l.SessionLocker.SessionUnlock(context.WithoutCancel(ctx), conn))
	}
	return nil
}

// SessionUnlock is called after the migrations.
func (l impatient) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, `RESET lock_timeout`)
	return errors.Join(err, l.SessionLocker.SessionUnlock(ctx, conn))
}

// applied returns the versions of the migrations that a database has, in ascending order. It waits for up to 30 s for each
// of its statements, because a process should start although the database is busy.
func applied(ctx context.Context, db *sql.DB) ([]int64, error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback() //nolint:errcheck // the transaction changes nothing
	if _, err := tx.ExecContext(ctx, `SET LOCAL statement_timeout = '30s'`); err != nil {
		return nil, err
	}
	var migrated bool
	err = tx.QueryRowContext(ctx, `SELECT to_regclass('goose_db_version') IS NOT NULL`).Scan(&migrated)
	if err != nil || !migrated {
		return nil, err
	}
	// goose's own row has version 0.
	rows, err := tx.QueryContext(ctx, `SELECT DISTINCT version_id FROM goose_db_version WHERE version_id > 0 ORDER BY version_id`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var versions []int64
	for rows.Next() {
		var version int64
		if err := rows.Scan(&version); err != nil {
			return nil, err
		}
		versions = append(versions, version)
	}
	return versions, rows.Err()
}

// newest returns the last of some versions in ascending order, 0 if there is none.
func newest(versions []int64) int64 {
	if len(versions) == 0 {
		return 0
	}
	return versions[len(versions)-1]
}

// without returns those of the versions that are not among the others.
func without(versions, others []int64) []int64 {
	return slices.DeleteFunc(slices.Clone(versions), func(v int64) bool { return slices.Contains(others, v) })
}
