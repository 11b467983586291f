package devstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
)

// Server is a child process, a container, or a stand-in within this process.
type Server interface {
	URL() string
	Stop() error
	Restart(ctx context.Context) error
}

// Servers are the private servers of a demo.
type Servers struct {
	Postgres, Redis     Server
	PostgresIs, RedisIs string // how each of them runs

	dir string // removed by Stop
}

// StartServers starts the servers. It reports the steps that take long, such as a download, to the writer progress.
func StartServers(ctx context.Context, progress io.Writer) (*Servers, error) {
	dir, err := TempDir()
	if err != nil {
		return nil, err
	}
	s := &Servers{dir: dir}
	err = s.startBinaries(ctx)
	if errors.Is(err, ErrNoPostgres) {
		err = s.startContainers(ctx, err, progress)
	}
	if err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// startBinaries runs the server binaries of this machine. A stand-in replaces a missing redis-server.
func (s *Servers) startBinaries(ctx context.Context) error {
	data := filepath.Join(s.dir, "postgres")
	if err := os.Mkdir(data, 0o700); err != nil {
		return fmt.Errorf("make PostgreSQL's directory: %w", err)
	}
	postgres, err := StartPostgres(ctx, data, nil)
	if err != nil {
		return err
	}
	s.Postgres, s.PostgresIs = postgres, "a process of this machine's postgres"
	redis, err := StartRedis(ctx, s.dir)
	if err == nil {
		s.Redis, s.RedisIs = redis, "a process of this machine's redis-server"
		return nil
	}
	if !errors.Is(err, ErrNoRedis) {
		return err
	}
	mini, err := StartMiniredis()
	if err != nil {
		return err
	}
	s.Redis, s.RedisIs = mini, "a stand-in within this process: there is no redis-server in PATH"
	return nil
}

// startContainers runs both servers in containers, because this machine has no PostgreSQL. If it has no container
// engine either, the error names all remedies: it begins with noPostgres, the error of the search for PostgreSQL.
func (s *Servers) startContainers(ctx context.Context, noPostgres error, progress io.Writer) error {
	engine, err := FindEngine(ctx)
	if err != nil {
		return fmt.Errorf("%w with the command serve; or start a container engine: %w", noPostgres, err)
	}
	fmt.Fprintf(progress, "this machine has no PostgreSQL server binaries: running %s and %s in containers with %s\n",
		PostgresImage(), RedisImage(), engine)
	for _, image := range []string{PostgresImage(), RedisImage()} {
		if err := engine.Pull(ctx, image, progress); err != nil {
			return err
		}
	}
	postgres, err := engine.StartPostgres(ctx, s.dir)
	if err != nil {
		return err
	}
	s.Postgres, s.PostgresIs = postgres, "a container of "+PostgresImage()
	redis, err := engine.StartRedis(ctx, s.dir)
	if err != nil {
		return err
	}
	s.Redis, s.RedisIs = redis, "a container of "+RedisImage()
	return nil
}

// Stop stops both servers, at the same time, and removes their files.
func (s *Servers) Stop() {
	var stopping errgroup.Group
	if s.Postgres != nil {
		stopping.Go(s.Postgres.Stop)
	}
	if s.Redis != nil {
		stopping.Go(s.Redis.Stop)
	}
	if err := errors.Join(stopping.Wait(), os.RemoveAll(s.dir)); err != nil {
		slog.Warn("the demo could not clean up: remove its directory yourself", "dir", s.dir, "error", err)
	}
}
