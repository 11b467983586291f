package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/order"
)

// faults break the demo on demand. Each may be asked for twice.
type faults struct {
	app   *app
	redis demoServer

	mu      sync.Mutex  // one fault at a time
	stopped atomic.Bool // Redis
	paused  atomic.Bool // the worker
	pause   chan struct{}
	resume  chan struct{}
}

func newFaults(a *app, redis demoServer) *faults {
	return &faults{app: a, redis: redis, pause: make(chan struct{}), resume: make(chan struct{})}
}

// faultState is what of the demo is broken on purpose.
type faultState struct {
	RedisStopped bool `json:"redis_stopped"`
	WorkerPaused bool `json:"worker_paused"`
}

// state is nil outside the demo.
func (f *faults) state() *faultState {
	if f == nil {
		return nil
	}
	return &faultState{f.stopped.Load(), f.paused.Load()}
}

// inject is the handler of POST /ops/api/faults/{fault}.
func (f *faults) inject(c *gin.Context) error {
	known := map[string]func(context.Context) error{
		"redis-stop": f.stopRedis, "redis-start": f.startRedis, "redis-wipe": f.wipeRedis,
		"worker-pause": f.pauseWorker, "worker-resume": f.resumeWorker,
	}
	fault, ok := known[c.Param("fault")]
	if !ok {
		return order.Errorf(order.CodeNotFound, "There is no fault %s.", c.Param("fault"))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := fault(c.Request.Context()); err != nil {
		return err
	}
	f.app.log.Warn("fault injected", "fault", c.Param("fault"))
	c.Status(http.StatusNoContent)
	return nil
}

func (f *faults) stopRedis(context.Context) error {
	f.stopped.Store(true)
	return f.redis.Stop()
}

func (f *faults) startRedis(ctx context.Context) error {
	if !f.stopped.Load() {
		return nil
	}
	if err := f.redis.Restart(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	f.stopped.Store(false)
	return nil
}

func (f *faults) wipeRedis(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := f.app.rdb.FlushAll(ctx).Err(); err != nil {
		return &order.Error{Code: order.CodeUnavailable, Detail: "Redis does not answer: start it first.", Err: fmt.Errorf("wipe Redis: %w", err)}
	}
	return nil
}

func (f *faults) pauseWorker(ctx context.Context) error { return f.tell(ctx, f.pause, true) }

func (f *faults) resumeWorker(ctx context.Context) error { return f.tell(ctx, f.resume, false) }

// tell has runWorker change between working and pausing, unless it does already what is asked.
func (f *faults) tell(ctx context.Context, change chan struct{}, paused bool) error {
	if f.paused.Load() == paused {
		return nil
	}
	select {
	case change <- struct{}{}:
		f.paused.Store(paused)
		return nil
	case <-ctx.Done(): // the demo ends
		return ctx.Err()
	}
}

// What placeOrders places, how many at a time, and how long it may take, on a machine that is busy with it.
const (
	loadOrders  = 1000
	loadClients = 8
	loadTime    = 50 * time.Second
)

// placeOrders is the handler of POST /ops/api/faults/place-orders: a new customer who orders a thousand
// things and pays for none.
func (f *faults) placeOrders(c *gin.Context) error {
	ctx, cancel, err := unhurried(c, loadTime)
	if err != nil {
		return err
	}
	defer cancel()
	products, err := f.app.orders.Products(ctx)
	if err != nil {
		return err
	}
	plenty := slices.MaxFunc(products, func(a, b order.Product) int { return cmp.Compare(a.Available, b.Available) })
	customer := f.app.orders.SignUp()
	clients, ctx := errgroup.WithContext(ctx)
	clients.SetLimit(loadClients)
	for range loadOrders {
		clients.Go(func() error {
			_, _, err := f.app.orders.Place(ctx, customer, order.Placement{Lines: []order.Line{{ProductID: plenty.ID, Quantity: 1}}})
			return err
		})
	}
	if err := clients.Wait(); err != nil {
		return err
	}
	c.Status(http.StatusNoContent)
	return nil
}

// runWorker runs the demo's worker until ctx ends, with the pauses that are asked for.
func (f *faults) runWorker(ctx context.Context) error {
	for {
		working, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- f.app.worker.Run(working) }()
		select {
		case <-f.pause:
		case <-ctx.Done():
		}
		stop()
		if err := <-ended; err != nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-f.resume:
		case <-ctx.Done():
			return nil
		}
	}
}
