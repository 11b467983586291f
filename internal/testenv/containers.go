package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"

	"example.com/shop/internal/devstack"
)

// errNoContainers: no container engine answers, or it has not and cannot pull the image.
var errNoContainers = errors.New("no containers")

func postgresContainer() (string, error) {
	endpoint, err := runContainer(testcontainers.ContainerRequest{
		Image:        devstack.PostgresImage(),
		Env:          map[string]string{"POSTGRES_USER": "shop", "POSTGRES_PASSWORD": "shop", "POSTGRES_DB": "shop"},
		Cmd:          []string{"postgres", "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=300"},
		ExposedPorts: []string{"5432/tcp"},
		// By TCP: the image starts the server twice, the first time to make the database, with its socket alone. An open
		// port says nothing: the server listens before it answers, and the engine's proxy before the server.
		WaitingFor: wait.ForExec([]string{"pg_isready", "--host=127.0.0.1", "--username=shop"}).WithStartupTimeout(2 * time.Minute),
	})
	if err != nil {
		return "", err
	}
	return "postgres://shop:shop@" + endpoint + "/shop?sslmode=disable", nil
}

func redisContainer() (string, error) {
	endpoint, err := runContainer(testcontainers.ContainerRequest{
		Image:        devstack.RedisImage(),
		ExposedPorts: []string{"6379/tcp"},
		WaitingFor:   wait.ForExec([]string{"redis-cli", "ping"}).WithStartupTimeout(2 * time.Minute),
	})
	if err != nil {
		return "", err
	}
	return "redis://" + endpoint + "/0", nil
}

// runContainer runs a container until all tests are done and returns the host:port of its one port.
func runContainer(req testcontainers.ContainerRequest) (string, error) {
	if os.Getenv("SHOP_TEST_SERVERS") == "local" {
		return "", withoutContainers(errors.New("SHOP_TEST_SERVERS is local"))
	}
	ctx, cancel := context.WithTimeout(background(), 3*time.Minute)
	defer cancel()
	if !engineAnswers(ctx) {
		return "", withoutContainers(errors.New("no container engine answers"))
	}
	c, err := testcontainers.GenericContainer(ctx, testcontainers.GenericContainerRequest{ContainerRequest: req, Started: true})
	if err != nil {
		return "", withoutContainers(errors.Join(fmt.Errorf("no container of %s: %w", req.Image, err), testcontainers.TerminateContainer(c)))
	}
	shared.onStop(func() error { return testcontainers.TerminateContainer(c) })
	return c.Endpoint(ctx, "")
}

// withoutContainers lets the machine's own servers be used, unless containers are required.
func withoutContainers(reason error) error {
	if required("containers") {
		return fmt.Errorf("SHOP_TEST_REQUIRE demands containers: %w", reason)
	}
	return fmt.Errorf("%w: %w", errNoContainers, reason)
}

func engineAnswers(ctx context.Context) (answers bool) {
	// The library panics where it finds no engine at all.
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
