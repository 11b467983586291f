package testenv

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/devstack"
)

// postgres is a server with a template database that has the schema.
type postgres struct {
	admin    *sql.DB
	url      *url.URL
	template string
	strategy string         // the end of the statement that copies the template
	drops    errgroup.Group // of the databases of tests that have ended
}

// Postgres returns the URL of a new database for the test. The database is a copy of a template that has the schema
// given to [Main], and is dropped after the test. The next test does not wait for the drop, because PostgreSQL
// waits 100 ms at a time until the last session of the database has ended.
func Postgres(t testing.TB) string {
	t.Helper()
	server, err := sharedPostgres()
	if errors.Is(err, devstack.ErrNoPostgres) {
		Skip(t, "postgres", err.Error())
	}
	if err != nil {
		t.Fatalf("start PostgreSQL: %v", err)
	}
	name := "test_" + strings.ToLower(rand.Text())
	Must(t, server.create(t.Context(), name))
	t.Cleanup(func() { server.drops.Go(func() error { return server.drop(name) }) })
	return server.database(name)
}

// DisablePostgres makes a database that [Postgres] returned unavailable: the server ends all sessions of the database,
// and rejects new ones.
func DisablePostgres(t testing.TB, databaseURL string) {
	t.Helper()
	u, err := url.Parse(databaseURL)
	Must(t, err)
	server, err := sharedPostgres()
	Must(t, err)
	name := strings.TrimPrefix(u.Path, "/")
	for _, statement := range []string{
		`ALTER DATABASE ` + name + ` ALLOW_CONNECTIONS false`,
		`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '` + name + `'`,
	} {
		_, err := server.admin.ExecContext(t.Context(), statement)
		Must(t, err)
	}
}

// PostgresServer starts a server for one test, which may pause, stop and restart the server. Its database has no
// tables. The server stops when the test ends. The settings and the environment are those of [devstack.StartPostgres].
func PostgresServer(t testing.TB, settings map[string]string, env ...string) *devstack.Postgres {
	t.Helper()
	all := maps.Clone(testSettings)
	maps.Copy(all, settings)
	server, err := devstack.StartPostgres(t.Context(), t.TempDir(), all, env...)
	if errors.Is(err, devstack.ErrNoPostgres) {
		Skip(t, "postgres", err.Error())
	}
	if err != nil {
		t.Fatalf("start PostgreSQL: %v", err)
	}
	t.Cleanup(func() { Must(t, server.Stop()) })
	return server
}

// PostgresPair starts a server for one test, as [PostgresServer] does, and a standby of it. A commit on the first
// waits for the standby. Both servers stop when the test ends.
func PostgresPair(t testing.TB, settings map[string]string, env ...string) (primary, standby *devstack.Postgres) {
	t.Helper()
	primary = PostgresServer(t, settings, env...)
	standby, err := primary.StartStandby(t.Context())
	if err != nil {
		t.Fatalf("start a standby: %v", err)
	}
	t.Cleanup(func() { Must(t, standby.Stop()) })
	Must(t, primary.AwaitStandby(t.Context()))
	return primary, standby
}

// testSettings trade durability for speed, because no test makes the machine lose power. The end-to-end tests run up to
// 16 sites at a time, with some 40 connections each.
var testSettings = map[string]string{
	"fsync": "off", "full_page_writes": "off", "max_connections": "800", "shared_buffers": "128MB",
}

// sharedPostgres is the server for [Postgres].
var sharedPostgres = sync.OnceValues(func() (*postgres, error) {
	address, err := postgresURL()
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	admin, err := sql.Open("pgx", address)
	if err != nil {
		return nil, err
	}
	AfterAll(admin.Close)
	p := &postgres{admin: admin, url: u, template: "template_" + strings.ToLower(rand.Text())}
	err = p.makeTemplate(context.Background())
	AfterAll(p.drops.Wait)
	return p, err
})

func postgresURL() (string, error) {
	if address, err := postgresContainer(); err == nil || !errors.Is(err, errNoContainers) {
		return address, err
	}
	dir, err := TempDir()
	if err != nil {
		return "", err
	}
	data := filepath.Join(dir, "postgres")
	if err := os.Mkdir(data, 0o700); err != nil {
		return "", err
	}
	server, err := devstack.StartPostgres(context.Background(), data, testSettings)
	if err != nil {
		return "", err
	}
	AfterAll(server.Stop)
	return server.URL(), nil
}

func (p *postgres) makeTemplate(ctx context.Context) error {
	// PostgreSQL 15 and later write a copy to the WAL, too, which takes more than twice the processor time. Earlier
	// ones only copy the files.
	const chooses = `
		SELECT CASE WHEN current_setting('server_version_num')::int < 150000 THEN '' ELSE ' STRATEGY file_copy' END`
	if err := p.admin.QueryRowContext(ctx, chooses).Scan(&p.strategy); err != nil {
		return fmt.Errorf("read the server's version: %w", err)
	}
	if _, err := p.admin.ExecContext(ctx, "CREATE DATABASE "+p.template); err != nil {
		return fmt.Errorf("create the template database: %w", err)
	}
	AfterAll(func() error { return p.drop(p.template) })
	db, err := sql.Open("pgx", p.database(p.template))
	if err != nil {
		return err
	}
	defer db.Close() // CREATE DATABASE fails while a session uses its template
	for _, migrate := range templateSchema {
		if _, err := migrate(ctx, db); err != nil {
			return fmt.Errorf("apply the schema to the template database: %w", err)
		}
	}
	// A session that begins after the last migration makes the files in which PostgreSQL caches a database's catalog.
	// The copies have these files, too.
	db.SetMaxIdleConns(0)
	return db.PingContext(ctx)
}

// create makes a database that is a copy of the template.
func (p *postgres) create(ctx context.Context, name string) error {
	if _, err := p.admin.ExecContext(ctx, "CREATE DATABASE "+name+" TEMPLATE "+p.template+p.strategy); err != nil {
		return fmt.Errorf("copy the template database: %w", err)
	}
	return nil
}

func (p *postgres) drop(name string) error {
	_, err := p.admin.ExecContext(context.Background(), "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	if err != nil {
		return fmt.Errorf("drop the test database: %w", err)
	}
	return nil
}

// database returns the URL of one of the server's databases.
func (p *postgres) database(name string) string {
	u := *p.url
	u.Path = "/" + name
	return u.String()
}
