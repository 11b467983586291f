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

// Server is a child process, or a stand-in within this process, that can be started again.
type Server interface {
	URL() string
	Stop() error
	Restart(ctx context.Context) error
}

// Servers are the private servers of a demo.
type Servers struct {
	Postgres interface { // a child process, or a container
		URL() string
		Stop() error
	}
	Redis               Server
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
	err = s.startPostgres(ctx, progress)
	if err == nil {
		err = s.startRedis(ctx)
	}
	if err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// startPostgres runs the binaries of this machine, or a container if there are none. If there is no container engine
// either, the error names all remedies.
func (s *Servers) startPostgres(ctx context.Context, progress io.Writer) error {
	data := filepath.Join(s.dir, "postgres")
	if err := os.Mkdir(data, 0o700); err != nil {
		return fmt.Errorf("make PostgreSQL's directory: %w", err)
	}
	postgres, err := StartPostgres(ctx, data, nil)
	if err == nil {
		s.Postgres, s.PostgresIs = postgres, "a process of this machine's postgres"
		return nil
	}
	if !errors.Is(err, ErrNoPostgres) {
		return err
	}
	engine, noEngine := FindEngine(ctx)
	if noEngine != nil {
		return fmt.Errorf("%w with the command serve; or start a container engine: %w", err, noEngine)
	}
	fmt.Fprintf(progress, "this machine has no PostgreSQL server binaries: running %s in a container with %s\n",
		PostgresImage(), engine)
	if err := PullPostgres(ctx, engine, progress); err != nil {
		return err
	}
	contained, err := startContainer(ctx, engine, s.dir)
	if err != nil {
		return err
	}
	s.Postgres, s.PostgresIs = contained, "a container of "+PostgresImage()
	return nil
}

// startRedis runs the binary of this machine. A stand-in replaces a missing one.
func (s *Servers) startRedis(ctx context.Context) error {
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
