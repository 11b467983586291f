package devstack

import "context"

// OnFreePort exports onFreePort.
func OnFreePort[T any](start func(port int) (T, error)) (T, error) { return onFreePort(start) }

// StartRedisOn is [StartRedis] with a given port.
func StartRedisOn(ctx context.Context, dir string, port int) (*Redis, error) {
	binary, err := redisBinary()
	if err != nil {
		return nil, err
	}
	r := &Redis{binary: binary, dir: dir, port: port}
	return r, r.Restart(ctx)
}

// StartPostgresOn is [StartPostgres] with a given port.
func StartPostgresOn(ctx context.Context, dir string, port int) (*Postgres, error) {
	run, err := initCluster(ctx, dir)
	if err != nil {
		return nil, err
	}
	p := &Postgres{run: run, dir: dir, port: port}
	return p, p.start(ctx)
}
