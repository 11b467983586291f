// Package demo breaks a running service on request, so that one can watch its repair: it stops, starts and wipes
// Redis, and pauses the worker. Its routes belong to the operators' API.
package demo

import (
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/devstack"
	"example.com/shop/internal/rest"
)

//go:embed openapi.yaml
var contract []byte

// Action injects or removes a fault.
type Action func(context.Context) error

// More is what another module adds to a demo: faults by their names in the path of the request, and a function that
// returns values of their state by name. The function may be nil.
type More struct {
	Faults map[string]Action
	State  func() map[string]any
}

// Part is the faults of a process that uses a private Redis, and runs its workers, so that it can pause them. A
// repeated request has no further effect, except that redis-wipe wipes Redis again. The REST contract is openapi.yaml.
func Part(redis devstack.Server, more More, log *slog.Logger) app.Part {
	f := &faults{redis: redis, more: more, log: log, switchWorker: make(chan struct{})}
	f.known = map[string]Action{
		"redis-stop": f.stopRedis, "redis-start": f.startRedis, "redis-wipe": f.wipeRedis,
		"worker-pause": f.pauseWorker(true), "worker-resume": f.pauseWorker(false),
	}
	maps.Copy(f.known, more.Faults)
	return app.Part{Contract: [][]byte{contract}, Routes: f.routes, Workers: f.runWorkers}
}

// faults injects faults, and removes them, when an operator requests it.
type faults struct {
	redis devstack.Server
	known map[string]Action
	more  More
	log   *slog.Logger

	mu           sync.Mutex // locked while a fault is injected or removed
	redisStopped atomic.Bool
	workerPaused atomic.Bool
	switchWorker chan struct{} // runWorkers receives from it to pause the workers, then to resume them, and so on
}

func (f *faults) routes(_, ops gin.IRouter) {
	ops.Match(rest.ReadMethods, "/faults", rest.Parameters(), f.answerState)
	ops.POST("/faults/:fault", rest.Parameters(), rest.Handle(rest.RequireEmptyBody), rest.Handle(f.inject))
}

// answerState is the handler of GET /ops/api/faults. The operators' page shows its fault buttons if it gets this
// answer.
func (f *faults) answerState(c *gin.Context) {
	all := map[string]any{"redis_stopped": f.redisStopped.Load(), "worker_paused": f.workerPaused.Load()}
	if f.more.State != nil {
		maps.Copy(all, f.more.State())
	}
	c.JSON(http.StatusOK, all)
}

func (f *faults) inject(c *gin.Context) error {
	fault, ok := f.known[c.Param("fault")]
	if !ok {
		return rest.NotFound.Errorf("There is no fault %s.", c.Param("fault"))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := fault(c.Request.Context()); err != nil {
		return err
	}
	f.log.Warn("fault injected or removed", "fault", c.Param("fault"))
	c.Status(http.StatusNoContent)
	return nil
}

func (f *faults) stopRedis(context.Context) error {
	f.redisStopped.Store(true)
	return f.redis.Stop()
}

func (f *faults) startRedis(ctx context.Context) error {
	if !f.redisStopped.Load() {
		return nil
	}
	// The end of the request does not abort the start, which has a time limit of its own.
	if err := f.redis.Restart(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	f.redisStopped.Store(false)
	return nil
}

func (f *faults) wipeRedis(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	rdb, err := delay.Connect(f.redis.URL(), nil)
	if err != nil {
		return err
	}
	defer rdb.Close()
	if err := rdb.FlushAll(ctx).Err(); err != nil {
		return &rest.Error{Class: rest.Unavailable, Detail: "Redis does not answer. Start Redis, then wipe it.",
			Err: fmt.Errorf("wipe Redis: %w", err)}
	}
	return nil
}

// pauseWorker returns the fault that pauses or resumes the workers. It waits until runWorkers receives, or until ctx
// ends, because runWorkers no longer receives after the demo has begun to stop.
func (f *faults) pauseWorker(paused bool) Action {
	return func(ctx context.Context) error {
		if f.workerPaused.Load() == paused {
			return nil
		}
		select {
		case f.switchWorker <- struct{}{}:
			f.workerPaused.Store(paused)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// runWorkers runs the demo's workers until ctx ends, except while they are paused.
func (f *faults) runWorkers(ctx context.Context, run func(context.Context) error) error {
	for {
		working, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- run(working) }()
		select {
		case <-f.switchWorker:
		case <-ctx.Done():
		}
		stop()
		if err := <-ended; err != nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-f.switchWorker:
		case <-ctx.Done():
			return nil
		}
	}
}
