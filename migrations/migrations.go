// Package migrations holds the database schema of the core as numbered SQL files, and applies them. It also applies
// the files of other modules, which have sets of their own.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
)

//go:embed *.sql
var files embed.FS

// Set is the migrations of one module. Each set has its own table of the versions that a database has. So a program
// that lacks a module does not take the module's migrations for a newer schema.
type Set struct {
	Name string // of the module, in lower-case letters

	// Files are SQL files in the format of goose, with numbers that are unique in the set. If no migration leads from
	// the schema of the releases before to the present one, all numbers are larger than those of these releases.
	Files fs.FS
}

// Core is the set of the core. The tables of the other modules refer to tables of this set.
var Core = Set{Name: "core", Files: files}

// Table returns the name of the set's version table. That of the core has the name that goose uses by default.
func (s Set) Table() string {
	if s.Name == Core.Name {
		return goose.DefaultTablename
	}
	return prefix + s.Name
}

const prefix = goose.DefaultTablename + "_" // begins the names of the other modules' version tables

// Up is [Set.Up] of the core.
func Up(ctx context.Context, db *sql.DB) ([]string, error) { return Core.Up(ctx, db) }

// UpAll is [Set.Up] of the core, and then of the sets of other modules in their order.
func UpAll(ctx context.Context, db *sql.DB, others ...Set) (applied []string, err error) {
	for _, s := range append([]Set{Core}, others...) {
		names, err := s.Up(ctx, db)
		applied = append(applied, names...)
		if err != nil {
			return applied, err
		}
	}
	return applied, nil
}

// Up applies the migrations of the set that the database lacks, and returns the names of the files that it applied,
// also if a later file fails. If the database has a newer migration, Up changes nothing and returns an error.
//
// If a statement waits for a lock of another session for longer than two seconds, Up returns the error
// lock_not_available (55P03). Call it again after some time. Several processes may call it at the same time: one of
// them migrates, and the others wait for it, for at most five minutes.
func (s Set) Up(ctx context.Context, db *sql.DB) (applied []string, err error) {
	state, err := s.compare(ctx, db)
	if err != nil {
		return nil, err
	}
	if state.newer != "" {
		return nil, errors.New(state.newer)
	}
	results, err := state.provider.Up(ctx)
	if partial, ok := errors.AsType[*goose.PartialError](err); ok {
		results, err = partial.Applied, fmt.Errorf("%s: %w", partial.Failed.Source.Path, partial.Err)
	}
	for _, r := range results {
		applied = append(applied, r.Source.Path)
	}
	if err != nil {
		return applied, fmt.Errorf("migrate: %w", err)
	}
	return applied, nil
}

// Check returns an error if the database lacks a migration of the core or of other modules. It accepts migrations that
// are newer than all of a set's, and returns a text that says so for each such set. Check changes nothing in the
// database, unlike goose's own check, which creates goose's table.
func Check(ctx context.Context, db *sql.DB, others ...Set) (newer []string, err error) {
	for _, s := range append([]Set{Core}, others...) {
		state, err := s.compare(ctx, db)
		if err != nil {
			return nil, err
		}
		if len(state.missing) > 0 && state.newer != "" {
			return nil, errors.New(state.newer)
		}
		if len(state.missing) > 0 {
			return nil, fmt.Errorf("the database lacks the migrations %v of %s: run the command migrate",
				state.missing, s.Name)
		}
		if state.newer != "" {
			newer = append(newer, state.newer)
		}
	}
	return newer, nil
}

// OtherModules returns the names of the modules besides the core whose migrations the database has.
func OtherModules(ctx context.Context, db *sql.DB) (others []string, err error) {
	var tables []string
	err = db.QueryRowContext(ctx, `
		SELECT array_agg(relname::text ORDER BY relname) FROM pg_class
		WHERE relkind = 'r' AND starts_with(relname::text, $1) AND pg_table_is_visible(oid)`, prefix,
	).Scan(pgtype.NewMap().SQLScanner(&tables))
	if err != nil {
		return nil, fmt.Errorf("look for the schema of other modules: %w", err)
	}
	for _, table := range tables {
		have, err := versions(ctx, db, table)
		if err != nil {
			return nil, err
		}
		if len(have) > 0 {
			others = append(others, strings.TrimPrefix(table, prefix))
		}
	}
	return others, nil
}

// state is how a database differs from a set.
type state struct {
	provider *goose.Provider
	missing  []int64 // the set's migrations that the database lacks
	newer    string  // says that the database has a migration that is newer than all of the set's; "": it has none
}

// compare returns an error if the database has the schema of an older release.
func (s Set) compare(ctx context.Context, db *sql.DB) (found state, err error) {
	// Poll for the lock, once a second. A session that blocks on the lock is in a transaction, and CREATE INDEX
	// CONCURRENTLY in a migration waits for that transaction, so both would wait for ever.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return state{}, fmt.Errorf("set up the lock for migrations: %w", err)
	}
	// A part that was left out of a binary, and is added later, may have a number below the newest one.
	found.provider, err = goose.NewProvider(database.DialectPostgres, db, s.Files, goose.WithTableName(s.Table()),
		goose.WithSessionLocker(impatient{locker}), goose.WithAllowOutofOrder(true))
	if err != nil {
		return state{}, fmt.Errorf("read migrations: %w", err)
	}
	have, err := versions(ctx, db, s.Table())
	if err != nil {
		return state{}, err
	}
	files := found.provider.ListSources() // at least one
	for _, file := range files {
		if !slices.Contains(have, file.Version) {
			found.missing = append(found.missing, file.Version)
		}
	}
	if len(have) == 0 {
		return found, nil
	}
	oldest, newest, first, last := have[0], have[len(have)-1], files[0].Version, files[len(files)-1].Version
	if oldest < first {
		return state{}, fmt.Errorf("the database has the schema of an older release, with migration %d, and none "+
			"leads from there to the schema of this one, which begins with migration %d: keep this database with the "+
			"older release until its rows have ended, and give this release a new one", newest, first)
	}
	if newest > last {
		found.newer = fmt.Sprintf("the database has schema version %d of %s, newer than version %d of this binary: "+
			"use a newer binary", newest, s.Name, last)
	}
	return found, nil
}

// versions returns the versions that a version table has, in ascending order; none if there is no such table.
func versions(ctx context.Context, db *sql.DB, table string) (have []int64, err error) {
	query := `SELECT array_agg(DISTINCT version_id ORDER BY version_id) FROM ` + pgx.Identifier{table}.Sanitize() +
		` WHERE version_id > 0` // goose's own row has version 0
	err = db.QueryRowContext(ctx, query).Scan(pgtype.NewMap().SQLScanner(&have))
	const undefinedTable = "42P01"
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == undefinedTable {
		return nil, checkSchema(ctx, db)
	}
	if err != nil {
		return nil, fmt.Errorf("read the schema version: %w", err)
	}
	return have, nil
}

// checkSchema returns an error if the role may use no schema of its search path, in which it then sees no table.
func checkSchema(ctx context.Context, db *sql.DB) error {
	var role, path string
	var usable bool
	err := db.QueryRowContext(ctx, `SELECT current_user, current_setting('search_path'), current_schema() IS NOT NULL`).
		Scan(&role, &path, &usable)
	switch {
	case err != nil:
		return fmt.Errorf("look for a schema: %w", err)
	case !usable:
		return fmt.Errorf("the role %s may use no schema of its search_path, which is %s: grant it USAGE on one", role, path)
	}
	return nil
}

// impatient makes the statements of migrations wait at most two seconds for a lock. While a statement that changes a
// table waits for the end of a transaction that only reads it, all later statements on the table wait, too. The time is
// longer than deadlock_timeout, a second by default, because an autovacuum of the table gives way only after it.
//
// CREATE INDEX CONCURRENTLY and DROP INDEX CONCURRENTLY wait for transactions without stopping others. A migration
// sets the time to 0 for them, and to two seconds after them. A migration without a transaction may fail after any of
// its statements, so each of them may be repeated.
type impatient struct{ lock.SessionLocker }

// SessionLock is called before the migrations, with the connection that executes them.
func (l impatient) SessionLock(ctx context.Context, conn *sql.Conn) error {
	if _, err := conn.ExecContext(ctx, `SET lock_timeout = '2s'`); err != nil {
		return err
	}
	return l.SessionLocker.SessionLock(ctx, conn)
}

// SessionUnlock is called after the migrations.
func (l impatient) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, `RESET lock_timeout`)
	return errors.Join(err, l.SessionLocker.SessionUnlock(ctx, conn))
}
