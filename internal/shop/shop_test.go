package shop_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/internal/order"
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

// options returns the options of a process whose Redis is down on a new database, which has the schema of books.
func options(t *testing.T, roles ...string) *shop.Serve {
	t.Helper()
	var o shop.Serve
	o.Roles, o.HTTPAddr, o.LogLevel = roles, "127.0.0.1:0", "info"
	o.DatabaseURL, o.DatabaseConns, o.RedisURL, o.QueueShards = testenv.Postgres(t), 20, "redis://127.0.0.1:1/0", 1
	_, db := parttest.OpenDB(t, o.DatabaseURL, 2)
	_, err := books.Up(t.Context(), db)
	testenv.Must(t, err)
	o.ReconcileSchedule, o.ReconcileLookahead = "@every 1s", time.Minute
	o.TokenKey, o.Ops.OpsToken = "0123456789abcdef-token-key-0123456789", "0123456789abcdef-ops-token-0123456789"
	o.Order = order.Options{OrderTimeout: time.Minute}
	return &o
}

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
			o := options(t, test.roles...)
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
	o := options(t)
	p, err := shop.New(t.Context(), o.Config(app.Program{Name: "shop"}), &o.Options, slog.New(slog.DiscardHandler))
	testenv.Must(t, err)
	defer p.Close()
	for setting, want := range postgres.IndexPlans {
		if got := testenv.Query[string](t, p.Pool, `SELECT current_setting($1)`, setting); got != want {
			t.Errorf("%s is %s, want %s", setting, got, want)
		}
	}
}
