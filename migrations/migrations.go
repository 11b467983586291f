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
	Name  string // of the module, in lower-case letters; empty for the core
	Files fs.FS  // SQL files in the format of goose, with numbers that are unique in the set

	// First is the number of the first migration of the present schema. Older releases had smaller numbers, and no
	// migration leads from their schema to the present one. 0: there were none.
	First int64
}

// Core is the set of the core. The tables of the other modules refer to tables of this set.
var Core = Set{Files: files, First: 101}

// Table returns the name of the set's version table. That of the core has the name that goose uses by default.
func (s Set) Table() string {
	if s.Name == "" {
		return goose.DefaultTablename
	}
	return prefix + s.Name
}

const prefix = goose.DefaultTablename + "_" // begins the names of the other modules' version tables

// withCore returns the core's set and those of other modules, in the order in which they are applied.
func withCore(others []Set) []Set { return append([]Set{Core}, others...) }

// VersionError means that a database and this binary do not have the same migrations of a set.
//
// The error compares all migrations, not only the newest ones, because a part can be left out of a binary, or added
// later with a number below the newest. If the database has a migration that the binary lacks, that is an error only
// if the binary has no newer one. Otherwise the migration belongs to a part that was left out.
type VersionError struct {
	Set        string  // the name of the set; empty for the core
	Have, Want int64   // the newest migrations of the database and of the binary; 0 is a database without a schema
	Missing    []int64 // the binary's migrations that the database lacks, in ascending order
}

// IsNewer reports whether the database has all migrations of the binary, and a newer one. The binary works with such a
// database.
func (e *VersionError) IsNewer() bool { return e.Have > e.Want && len(e.Missing) == 0 }

func (e *VersionError) Error() string {
	about := ""
	if e.Set != "" {
		about = "migrations of " + e.Set + ": "
	}
	if e.Have <= e.Want {
		return fmt.Sprintf("%sthe database lacks the migrations %v of this binary: run `shop migrate`",
			about, e.Missing)
	}
	newer := fmt.Sprintf("%sthe database has schema version %d, newer than version %d of this binary",
		about, e.Have, e.Want)
	if len(e.Missing) > 0 {
		return fmt.Sprintf("%s, and lacks its migrations %v: use a shop binary that has all of them", newer, e.Missing)
	}
	return newer + ": use a newer shop binary"
}

// Up is [Set.Up] of the core.
func Up(ctx context.Context, db *sql.DB) ([]string, error) { return Core.Up(ctx, db) }

// UpAll is [Set.Up] of the core, and then of the sets of other modules in their order. It changes nothing if one of
// the sets cannot be applied because the database is newer.
func UpAll(ctx context.Context, db *sql.DB, others ...Set) (applied []string, err error) {
	sets := withCore(others)
	for _, s := range sets {
		if err := s.checkNotNewer(ctx, db); err != nil {
			return nil, err
		}
	}
	for _, s := range sets {
		names, err := s.Up(ctx, db)
		applied = append(applied, names...)
		if err != nil {
			return applied, err
		}
	}
	return applied, nil
}

// CheckAll is [Set.Check] of the core and of the sets of other modules, except that a newer schema is no error. For
// each set of which the database has a newer migration, CheckAll returns how the schema differs.
func CheckAll(ctx context.Context, db *sql.DB, others ...Set) (newer []*VersionError, err error) {
	for _, s := range withCore(others) {
		err := s.Check(ctx, db)
		if version, ok := errors.AsType[*VersionError](err); ok && version.IsNewer() {
			newer = append(newer, version)
		} else if err != nil {
			return nil, err
		}
	}
	return newer, nil
}

// OtherModules returns the names of the modules, besides those of the given sets, whose migrations the database has.
func OtherModules(ctx context.Context, db *sql.DB, known ...Set) ([]string, error) {
	var tables []string
	err := db.QueryRowContext(ctx, `
		SELECT array_agg(relname::text ORDER BY relname) FROM pg_class
		WHERE relkind = 'r' AND starts_with(relname::text, $1) AND pg_table_is_visible(oid)`, prefix,
	).Scan(pgtype.NewMap().SQLScanner(&tables))
	if err != nil {
		return nil, fmt.Errorf("look for the schema of other modules: %w", err)
	}
	var others []string
	for _, table := range tables {
		if slices.ContainsFunc(known, func(s Set) bool { return s.Table() == table }) {
			continue
		}
		have, err := versions(ctx, db, table)
		if err != nil {
			return nil, fmt.Errorf("read the schema version of another module: %w", err)
		}
		if len(have) > 0 {
			others = append(others, strings.TrimPrefix(table, prefix))
		}
	}
	return others, nil
}

// Up applies the migrations of the set that the database lacks, and returns the names of the files that it applied.
// If a file fails, it returns the names of the files before it. It also applies migrations that are older than the
// newest one of the database.
//
// If a statement waits for a lock of another session for longer than two seconds, Up returns the error
// lock_not_available (55P03). Call it again after some time.
//
// Several processes may call it at the same time, also with other sets: one of them migrates, and the others wait for
// it, for at most five minutes. If the database has a migration that is newer than all of the binary's, Up changes
// nothing and returns a *[VersionError].
func (s Set) Up(ctx context.Context, db *sql.DB) ([]string, error) {
	if err := s.checkNotNewer(ctx, db); err != nil {
		return nil, err
	}
	provider, err := s.newProvider(db)
	if err != nil {
		return nil, err
	}
	results, err := provider.Up(ctx)
	if partial, ok := errors.AsType[*goose.PartialError](err); ok {
		results, err = partial.Applied, fmt.Errorf("%s: %w", partial.Failed.Source.Path, partial.Err)
	}
	var applied []string
	for _, r := range results {
		applied = append(applied, r.Source.Path)
	}
	if err != nil {
		return applied, fmt.Errorf("migrate: %w", err)
	}
	return applied, nil
}

// checkNotNewer is [Set.Check], except that a database that only lacks migrations is no error: they can be applied.
func (s Set) checkNotNewer(ctx context.Context, db *sql.DB) error {
	err := s.Check(ctx, db)
	if version, ok := errors.AsType[*VersionError](err); ok && version.Have <= version.Want {
		return nil
	}
	return err
}

// Check compares the migrations that the database has with those of the set. If the database lacks one, or has one
// that is newer than all of the set's, Check returns a *[VersionError]. It changes nothing in the database, unlike
// goose's own check, which creates goose's table.
func (s Set) Check(ctx context.Context, db *sql.DB) error {
	provider, err := s.newProvider(db)
	if err != nil {
		return err
	}
	have, err := versions(ctx, db, s.Table())
	if err != nil {
		return fmt.Errorf("read the schema version: %w", err)
	}
	if len(have) > 0 && have[0] < s.First {
		return fmt.Errorf("the database has the schema of an older release, with migration %d, and none leads from "+
			"there to the schema of this one, which begins with migration %d: keep this database with the older "+
			"release until its rows have ended, and give this release a new one", newest(have), s.First)
	}
	var want []int64
	for _, source := range provider.ListSources() {
		want = append(want, source.Version)
	}
	e := &VersionError{
		Set: s.Name, Have: newest(have), Want: newest(want),
		Missing: slices.DeleteFunc(slices.Clone(want), func(v int64) bool { return slices.Contains(have, v) }),
	}
	if len(e.Missing) == 0 && e.Have <= e.Want {
		return nil
	}
	return e
}

// newProvider reads the names of the files, and does not use the database.
func (s Set) newProvider(db *sql.DB) (*goose.Provider, error) {
	// Poll for the lock, once a second. A session that blocks on the lock is in a transaction, and CREATE INDEX
	// CONCURRENTLY in a migration waits for that transaction, so both would wait for ever.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return nil, fmt.Errorf("set up the lock for migrations: %w", err)
	}
	provider, err := goose.NewProvider(database.DialectPostgres, db, s.Files, goose.WithTableName(s.Table()),
		goose.WithSessionLocker(impatient{locker}), goose.WithAllowOutofOrder(true))
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	return provider, nil
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

const undefinedTable = "42P01" // the SQLSTATE of a statement that reads a table which does not exist

// versions returns the versions that a version table has, in ascending order; none if there is no such table.
func versions(ctx context.Context, db *sql.DB, table string) (have []int64, err error) {
	query := `SELECT array_agg(DISTINCT version_id ORDER BY version_id) FROM ` + pgx.Identifier{table}.Sanitize() +
		` WHERE version_id > 0` // goose's own row has version 0
	err = db.QueryRowContext(ctx, query).Scan(pgtype.NewMap().SQLScanner(&have))
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == undefinedTable {
		return nil, nil
	}
	return have, err
}

// newest returns the last of some versions in ascending order, 0 if there is none.
func newest(versions []int64) int64 {
	if len(versions) == 0 {
		return 0
	}
	return versions[len(versions)-1]
}
