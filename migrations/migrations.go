// Package migrations holds the schema as numbered SQL files and brings a database up to them.
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

// VersionError says that the database's schema is not the one that this binary was built for.
type VersionError struct {
	Have, Want int64 // schema versions: of the database, of the binary
}

// IsNewer reports whether the database's schema is newer than the binary's.
func (e *VersionError) IsNewer() bool { return e.Have > e.Want }

func (e *VersionError) Error() string {
	if e.IsNewer() {
		return fmt.Sprintf("the database's schema is version %d, newer than the %d this binary knows: run the newer shop", e.Have, e.Want)
	}
	return fmt.Sprintf("the database's schema is version %d, this binary needs %d: run `shop migrate`", e.Have, e.Want)
}

// Up applies what is missing and returns the names of the files applied. Any number of processes may
// call it at once: one migrates, the others wait for it, up to five minutes. A schema newer than the
// binary is a *VersionError and is left alone.
func Up(ctx context.Context, db *sql.DB) ([]string, error) {
	// A session lock, polled each second: a blocking lock would itself be a transaction that
	// CREATE INDEX CONCURRENTLY in a migration waits for, and so a deadlock.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return nil, fmt.Errorf("migration lock: %w", err)
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

// Check returns nil if the database's schema is the binary's, else a *VersionError or what kept it
// from looking. It changes nothing, where goose's own look would make its table.
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

// applied is the version of a database, 0 if it never had one.
func applied(ctx context.Context, db *sql.DB) (version int64, err error) {
	var migrated bool
	err = db.QueryRowContext(ctx, `SELECT to_regclass('goose_db_version') IS NOT NULL`).Scan(&migrated)
	if err != nil || !migrated {
		return 0, err
	}
	err = db.QueryRowContext(ctx, `SELECT coalesce(max(version_id), 0) FROM goose_db_version`).Scan(&version)
	return version, err
}

// newest is the version of the last file.
func newest() (int64, error) {
	names, err := fs.Glob(files, "*.sql") // sorted
	if err != nil || len(names) == 0 {
		return 0, fmt.Errorf("read migrations: none are embedded: %w", err)
	}
	version, err := goose.NumericComponent(names[len(names)-1])
	if err != nil {
		return 0, fmt.Errorf("read migrations: %w", err)
	}
	return version, nil
}
