// Package migrations holds the database schema as numbered SQL files and applies them.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
)

//go:embed *.sql
var files embed.FS

// VersionError means that the database's schema is not the one that this binary was built for.
type VersionError struct {
	Have, Want int64 // schema versions of the database and of the binary; 0 is a database without a schema
}

// IsNewer reports whether the database's schema is newer than the binary's.
func (e *VersionError) IsNewer() bool { return e.Have > e.Want }

func (e *VersionError) Error() string {
	if e.IsNewer() {
		return fmt.Sprintf("the database has schema version %d, newer than version %d of this binary: use a newer shop binary", e.Have, e.Want)
	}
	return fmt.Sprintf("the database has schema version %d, but this binary needs version %d: run `shop migrate`", e.Have, e.Want)
}

// Up applies the migrations that the database lacks, and returns the names of the files that it applied.
//
// Several processes may call it at the same time: one of them migrates, and the others wait for it, for at most five
// minutes. If the database's schema is newer than the binary's, Up changes nothing and returns a *[VersionError].
func Up(ctx context.Context, db *sql.DB) ([]string, error) {
	// Poll for the lock, once a second. A session that blocks on the lock is in a transaction, and CREATE INDEX
	// CONCURRENTLY in a migration waits for that transaction, so both would wait for ever.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return nil, fmt.Errorf("set up the lock for migrations: %w", err)
	}
	provider, err := goose.NewProvider(database.DialectPostgres, db, files, goose.WithSessionLocker(locker))
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	if err := Check(ctx, db); err != nil {
		version, ok := errors.AsType[*VersionError](err)
		if !ok || version.IsNewer() {
			return nil, err
		}
	}
	results, err := provider.Up(ctx)
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	var applied []string
	for _, r := range results {
		applied = append(applied, r.Source.Path)
	}
	return applied, nil
}

// Check compares the database's schema with the binary's. If they differ it returns a *[VersionError]. Check changes
// nothing in the database, unlike goose's own check, which creates goose's table.
func Check(ctx context.Context, db *sql.DB) error {
	have, err := applied(ctx, db)
	if err != nil {
		return fmt.Errorf("read the schema version: %w", err)
	}
	want, err := newest()
	if err != nil {
		return err
	}
	if have != want {
		return &VersionError{Have: have, Want: want}
	}
	return nil
}

// applied returns the schema version of a database, 0 if the database was never migrated. It waits for up to 30 s for each
// of its statements, because a process should start although the database is busy.
func applied(ctx context.Context, db *sql.DB) (version int64, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback() //nolint:errcheck // the transaction changes nothing
	if _, err := tx.ExecContext(ctx, `SET LOCAL statement_timeout = '30s'`); err != nil {
		return 0, err
	}
	var migrated bool
	err = tx.QueryRowContext(ctx, `SELECT to_regclass('goose_db_version') IS NOT NULL`).Scan(&migrated)
	if err != nil || !migrated {
		return 0, err
	}
	err = tx.QueryRowContext(ctx, `SELECT coalesce(max(version_id), 0) FROM goose_db_version`).Scan(&version)
	return version, err
}

// newest returns the version of the last embedded file.
func newest() (int64, error) {
	names, err := fs.Glob(files, "*.sql") // sorted
	if err != nil {
		return 0, fmt.Errorf("read migrations: %w", err)
	}
	if len(names) == 0 {
		return 0, errors.New("read migrations: no *.sql file is embedded")
	}
	version, err := goose.NumericComponent(names[len(names)-1])
	if err != nil {
		return 0, fmt.Errorf("read migrations: %w", err)
	}
	return version, nil
}
