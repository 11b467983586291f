package shop_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/fstest"

	"example.com/shop/internal/app"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/shop"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/migrations"
)

// books is the set of another module.
var books = migrations.Set{Name: "books", Files: fstest.MapFS{
	"00001_books.sql": {Data: []byte("-- +goose Up\nCREATE TABLE books (order_id uuid REFERENCES orders);\n")},
}}

// TestSchemaOfAnotherModule opens processes on a database that has the schema of a module which the program lacks. Only
// the role api needs the module.
func TestSchemaOfAnotherModule(t *testing.T) {
	for name, test := range map[string]struct {
		roles []string
		opens bool
	}{
		"every role":  {[]string{app.API, app.Relay, app.Worker, app.Reconciler}, false},
		"api":         {[]string{app.API}, false},
		"other roles": {[]string{app.Relay, app.Worker, app.Reconciler}, true},
		"a tool":      {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			o := validOptions()
			o.Roles, o.DatabaseURL, o.RedisURL = test.roles, testenv.Postgres(t), "redis://127.0.0.1:1/0"
			_, db := parttest.OpenDB(t, o.DatabaseURL, 2)
			_, err := books.Up(t.Context(), db)
			testenv.Must(t, err)
			var log bytes.Buffer
			p, err := shop.New(t.Context(), o.Config(app.Program{Name: "shop"}), &o.Options,
				slog.New(slog.NewTextHandler(&log, nil)))
			if err == nil {
				p.Close()
			}
			says := err != nil && strings.Contains(err.Error(), "run the program that has books")
			if (err == nil) != test.opens || says == test.opens {
				t.Errorf("New returns %v, want that it succeeds: %v, or says what to run", err, test.opens)
			}
			warns := strings.Contains(log.String(), "level=WARN") && strings.Contains(log.String(), "module=books")
			if warns != test.opens {
				t.Errorf("the log is %q, want a warning about books: %v", log.String(), test.opens)
			}
		})
	}
}

// TestSessionsPlanWithIndexes checks that the sessions of a process have the settings with which the plans are tested.
func TestSessionsPlanWithIndexes(t *testing.T) {
	p := newTestApp(t, "redis://127.0.0.1:1/0", 1)
	for setting, want := range postgres.IndexPlans {
		if got := testenv.Query[string](t, p.Pool, `SELECT current_setting($1)`, setting); got != want {
			t.Errorf("%s is %s, want %s", setting, got, want)
		}
	}
}
