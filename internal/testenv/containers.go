package testenv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"

	"example.com/shop/internal/devstack"
)

// errNoContainers means that no container can run: no engine answers, the engine neither has the image nor can pull it,
// or TEST_SERVERS is local.
var errNoContainers = errors.New("no containers")

func postgresContainer() (string, error) {
	endpoint, err := runContainer(testcontainers.ContainerRequest{
		Image: devstack.PostgresImage(),
		Env:   map[string]string{"POSTGRES_USER": "test", "POSTGRES_PASSWORD": "test", "POSTGRES_DB": "test"},
		Cmd: []string{
			"postgres", "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=800",
		},
		ExposedPorts: []string{"5432/tcp"},
		// Check over TCP, because the image first starts a server that has only a Unix socket, to create the database.
		// An open port does not show that the server is ready, because the engine's proxy listens before the server.
		WaitingFor: wait.ForExec([]string{"pg_isready", "--host=127.0.0.1", "--username=test"}).
			WithStartupTimeout(2 * time.Minute),
	})
	if err != nil {
		return "", err
	}
	return "postgres://test:test@" + endpoint + "/test?sslmode=disable", nil
}

func redisContainer() (string, error) {
	return runContainer(testcontainers.ContainerRequest{
		Image:        cmp.Or(os.Getenv("REDIS_IMAGE"), "redis:7.4.5-alpine"),
		ExposedPorts: []string{"6379/tcp"},
		WaitingFor:   wait.ForExec([]string{"redis-cli", "ping"}).WithStartupTimeout(2 * time.Minute),
	})
}

// runContainer runs a container until all tests are done, and returns the host:port of the only port that it exposes.
func runContainer(req testcontainers.ContainerRequest) (string, error) {
	if os.Getenv("TEST_SERVERS") == "local" {
		return "", withoutContainers(errors.New("TEST_SERVERS is local"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if !engineAnswers(ctx) {
		return "", withoutContainers(errors.New("no container engine answers"))
	}
	c, err := testcontainers.GenericContainer(ctx,
		testcontainers.GenericContainerRequest{ContainerRequest: req, Started: true})
	if err != nil {
		err = fmt.Errorf("run a container of %s: %w", req.Image, err)
		return "", withoutContainers(errors.Join(err, testcontainers.TerminateContainer(c)))
	}
	AfterAll(func() error { return testcontainers.TerminateContainer(c) })
	return c.Endpoint(ctx, "")
}

// withoutContainers returns an error that wraps errNoContainers, so that the caller uses the machine's own servers. If
// TEST_REQUIRE lists containers, it returns another error.
func withoutContainers(reason error) error {
	if required("containers") {
		return fmt.Errorf("TEST_REQUIRE lists containers, but none can run: %w", reason)
	}
	return fmt.Errorf("%w: %w", errNoContainers, reason)
}

// engineAnswers reports whether a container engine answers.
func engineAnswers(ctx context.Context) (answers bool) {
	// testcontainers panics if it finds no engine.
	defer func() {
		if recover() != nil {
			answers = false
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return false
	}
	defer provider.Close()
	return provider.Health(ctx) == nil
}
