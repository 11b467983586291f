// Package migrationtest checks the sets of migrations of all modules.
package migrationtest

import (
	"database/sql"
	"testing"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"example.com/shop/migrations"
)

// Schema returns what the migrations created, a line each, without the order of a table's columns.
func Schema(t *testing.T, db *sql.DB) (lines string) {
	t.Helper()
	err := db.QueryRowContext(t.Context(), `
		WITH relation AS (
			SELECT oid, relname, relkind, reloptions FROM pg_class
			WHERE relnamespace = 'public'::regnamespace AND relname NOT LIKE 'goose_db_version%'
		)
		SELECT coalesce(string_agg(line, E'\n' ORDER BY line), '') FROM (
			SELECT concat_ws(' ', 'relation', relname, relkind, reloptions::text) FROM relation
			UNION ALL
			SELECT concat_ws(' ', 'column', relname, attname, format_type(atttypid, atttypmod), attnotnull,
				attidentity, attgenerated, pg_get_expr(adbin, adrelid))
			FROM pg_attribute JOIN relation ON relation.oid = attrelid
				LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
			WHERE attnum > 0 AND NOT attisdropped
			UNION ALL
			SELECT concat_ws(' ', 'constraint', relname, conname, pg_get_constraintdef(c.oid))
			FROM pg_constraint c JOIN relation ON relation.oid = conrelid
			UNION ALL
			SELECT pg_get_indexdef(indexrelid) FROM pg_index JOIN relation ON relation.oid = indexrelid
			UNION ALL
			SELECT pg_get_triggerdef(g.oid) FROM pg_trigger g JOIN relation ON relation.oid = tgrelid
			WHERE NOT tgisinternal
			UNION ALL
			SELECT pg_get_functiondef(oid) FROM pg_proc
			WHERE pronamespace = 'public'::regnamespace AND prokind IN ('f', 'p')
			UNION ALL
			SELECT concat_ws(' ', 'type', typname,
				array(SELECT enumlabel FROM pg_enum WHERE enumtypid = y.oid ORDER BY enumsortorder)::text)
			FROM pg_type y WHERE typnamespace = 'public'::regnamespace AND typtype IN ('e', 'd')
		) found (line)`).Scan(&lines)
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// DownUndoesUp applies the files of a set one after the other, then takes each one back, and applies all of them
// again.
func DownUndoesUp(t *testing.T, db *sql.DB, set migrations.Set) {
	t.Helper()
	provider, err := goose.NewProvider(database.DialectPostgres, db, set.Files, goose.WithTableName(set.Table()))
	if err != nil {
		t.Fatal(err)
	}
	after := []string{Schema(t, db)} // the schema after each number of files
	for range provider.ListSources() {
		if _, err := provider.UpByOne(t.Context()); err != nil {
			t.Fatal(err)
		}
		after = append(after, Schema(t, db))
	}
	last := len(after) - 1
	for n := last; n > 0; n-- {
		down, err := provider.Down(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := Schema(t, db); got != after[n-1] || got == after[n] {
			t.Errorf("after the way down of %s the schema is\n%s\nwant that before its way up:\n%s",
				down.Source.Path, got, after[n-1])
		}
	}
	if _, err := provider.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := Schema(t, db); got != after[last] {
		t.Errorf("after the second way up the schema is\n%s\nwant that after the first one:\n%s", got, after[last])
	}
}
