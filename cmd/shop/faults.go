package main

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
)

//go:embed demo.openapi.yaml
var demoOpenAPI []byte

// faults injects faults into the demo, and removes them, when an operator requests it. A repeated request has no
// further effect, with three exceptions: redis-wipe wipes Redis again, place-orders places more orders, and flash-sale
// starts another sale. The REST contract is demo.openapi.yaml.
type faults struct {
	app      *app
	redis    demoServer
	sale     *flashSale
	payments *demoPayments

	mu           sync.Mutex // held while a fault is injected or removed
	redisStopped atomic.Bool
	workerPaused atomic.Bool
	pause        chan struct{} // received by runWorker while the worker runs
	resume       chan struct{} // received by runWorker while the worker is paused
}

func newFaults(a *app, redis demoServer) *faults {
	return &faults{app: a, redis: redis, sale: newFlashSale(a), pause: make(chan struct{}), resume: make(chan struct{})}
}

// routes adds the paths of demo.openapi.yaml to the operators' API.
func (f *faults) routes(root, ops gin.IRouter) {
	root.Match(rest.ReadMethods, "/demo-openapi.yaml", rest.Parameters(), func(c *gin.Context) { c.Data(http.StatusOK, "application/yaml", demoOpenAPI) })
	ops.Match(rest.ReadMethods, "/faults", rest.Parameters(), func(c *gin.Context) { c.JSON(http.StatusOK, f.state()) })
	f.payments.routes(ops)
	post := ops.Group("/faults", rest.Parameters(), rest.Handle(rest.RequireEmptyBody))
	post.POST("/:fault", rest.Handle(f.inject))
	post.POST("/place-orders", rest.Handle(f.placeOrders))
	post.POST("/flash-sale", rest.Handle(f.sale.start))
}

// faultState is the answer to GET /ops/api/faults. The operators' page shows its fault buttons if it gets this answer.
type faultState struct {
	RedisStopped bool       `json:"redis_stopped"`
	WorkerPaused bool       `json:"worker_paused"`
	FlashSale    *saleState `json:"flash_sale"` // null before the first
	*paymentFaultState
}

func (f *faults) state() faultState {
	s := faultState{RedisStopped: f.redisStopped.Load(), WorkerPaused: f.workerPaused.Load(), FlashSale: f.sale.snapshot()}
	s.paymentFaultState = f.payments.faultState()
	return s
}

// inject is the handler of POST /ops/api/faults/{fault}.
func (f *faults) inject(c *gin.Context) error {
	known := map[string]func(context.Context) error{
		"redis-stop": f.stopRedis, "redis-start": f.startRedis, "redis-wipe": f.wipeRedis,
		"worker-pause": f.pauseWorker, "worker-resume": f.resumeWorker,
	}
	f.payments.addFaults(known)
	fault, ok := known[c.Param("fault")]
	if !ok {
		return rest.NotFound.Errorf("There is no fault %s.", c.Param("fault"))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := fault(c.Request.Context()); err != nil {
		return err
	}
	f.app.log.Warn("fault injected or removed", "fault", c.Param("fault"))
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
	if err := f.app.rdb.FlushAll(ctx).Err(); err != nil {
		return &rest.Error{Kind: rest.Unavailable, Detail: "Redis does not answer. Start Redis, then wipe it.", Err: fmt.Errorf("wipe Redis: %w", err)}
	}
	return nil
}

func (f *faults) pauseWorker(ctx context.Context) error { return f.switchWorker(ctx, f.pause, true) }

func (f *faults) resumeWorker(ctx context.Context) error { return f.switchWorker(ctx, f.resume, false) }

// switchWorker sends on change, unless the worker is in the requested state already. It waits until runWorker receives.
// It stops waiting when ctx ends, because runWorker no longer receives after the demo has begun to stop.
func (f *faults) switchWorker(ctx context.Context, change chan struct{}, paused bool) error {
	if f.workerPaused.Load() == paused {
		return nil
	}
	select {
	case change <- struct{}{}:
		f.workerPaused.Store(paused)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const (
	loadOrders  = 1000             // orders that placeOrders places
	loadClients = 8                // placements at the same time
	loadTime    = 50 * time.Second // the time limit for all placements: a busy machine is slow
)

// placeOrders is the handler of POST /ops/api/faults/place-orders. It places loadOrders orders that stay unpaid. Each
// has a customer of its own, because the service limits the unpaid orders of a customer.
func (f *faults) placeOrders(c *gin.Context) error {
	ctx, cancel, err := extendDeadline(c, loadTime)
	if err != nil {
		return err
	}
	defer cancel()
	products, err := f.app.orders.Products(ctx)
	if err != nil {
		return err
	}
	product := slices.MaxFunc(products, func(a, b order.Product) int { return cmp.Compare(a.Available, b.Available) })
	clients, ctx := errgroup.WithContext(ctx)
	clients.SetLimit(loadClients)
	for range loadOrders {
		clients.Go(func() error {
			_, _, err := f.app.orders.Place(ctx, f.app.orders.SignUp(), order.Placement{Lines: []order.Line{{ProductID: product.ID, Quantity: 1}}})
			return err
		})
	}
	if err := clients.Wait(); err != nil {
		return err
	}
	c.Status(http.StatusNoContent)
	return nil
}

// runWorker runs the demo's worker until ctx ends. It stops the worker on pause, and starts it again on resume.
func (f *faults) runWorker(ctx context.Context) error {
	for {
		working, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- f.app.runWorkers(working) }()
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
