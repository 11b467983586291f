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
	"testing"

	"example.com/shop/internal/devstack"
	"example.com/shop/migrations"
)

// postgres is a server with a migrated template database.
type postgres struct {
	admin    *sql.DB
	url      *url.URL
	template string
}

// Postgres returns the URL of a database of the test's own, with the schema and no rows. It is a clone of
// a template, and is dropped when the test ends.
func Postgres(t testing.TB) string {
	t.Helper()
	server, err := shared.postgres.get(startPostgres)
	if errors.Is(err, devstack.ErrNoPostgres) {
		Skip(t, "postgres", err.Error())
	}
	if err != nil {
		t.Fatalf("start PostgreSQL: %v", err)
	}
	name := "shop_test_" + strings.ToLower(rand.Text())
	if err := server.create(t.Context(), name, server.template); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.drop(name); err != nil {
			t.Error(err)
		}
	})
	return server.database(name)
}

// PostgresServer returns a server of the test's own, that it may pause, stop and restart. Its database
// has no schema.
func PostgresServer(t testing.TB, settings map[string]string) *devstack.Postgres {
	t.Helper()
	return PostgresServerEnv(t, nil, settings)
}

// PostgresServerEnv is PostgresServer with more in the server's environment.
func PostgresServerEnv(t testing.TB, env []string, settings map[string]string) *devstack.Postgres {
	t.Helper()
	all := maps.Clone(testSettings)
	maps.Copy(all, settings)
	server, err := devstack.StartPostgresEnv(t.Context(), env, t.TempDir(), all)
	if errors.Is(err, devstack.ErrNoPostgres) {
		Skip(t, "postgres", err.Error())
	}
	if err != nil {
		t.Fatalf("start PostgreSQL: %v", err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// testSettings trade durability, which no test of ours can observe (the machine would have to lose its
// power), for speed.
var testSettings = map[string]string{
	"fsync": "off", "full_page_writes": "off", "max_connections": "300", "shared_buffers": "128MB",
}

func startPostgres() (*postgres, error) {
	address, err := postgresURL()
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("SHOP_TEST_DATABASE_URL is not a URL")
	}
	admin, err := sql.Open("pgx", address)
	if err != nil {
		return nil, err
	}
	shared.onStop(admin.Close)
	p := &postgres{admin: admin, url: u, template: "shop_template_" + strings.ToLower(rand.Text())}
	return p, p.makeTemplate(background())
}

func postgresURL() (string, error) {
	if address := os.Getenv("SHOP_TEST_DATABASE_URL"); address != "" {
		return address, nil
	}
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
	server, err := devstack.StartPostgres(background(), data, testSettings)
	if err != nil {
		return "", err
	}
	shared.onStop(server.Stop)
	return server.URL(), nil
}

func (p *postgres) makeTemplate(ctx context.Context) error {
	if _, err := p.admin.ExecContext(ctx, "CREATE DATABASE "+p.template); err != nil {
		return fmt.Errorf("create template: %w", err)
	}
	shared.onStop(func() error { return p.drop(p.template) })
	db, err := sql.Open("pgx", p.database(p.template))
	if err != nil {
		return err
	}
	defer db.Close() // a template with a session cannot be cloned
	_, err = migrations.Up(ctx, db)
	return err
}

func (p *postgres) create(ctx context.Context, name, template string) error {
	if _, err := p.admin.ExecContext(ctx, "CREATE DATABASE "+name+" TEMPLATE "+template); err != nil {
		return fmt.Errorf("clone template: %w", err)
	}
	return nil
}

func (p *postgres) drop(name string) error {
	if _, err := p.admin.ExecContext(background(), "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("drop test database: %w", err)
	}
	return nil
}

func (p *postgres) database(name string) string {
	u := *p.url
	u.Path = "/" + name
	return u.String()
}
