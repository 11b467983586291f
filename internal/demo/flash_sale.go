package demo

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"
	"github.com/sethvargo/go-retry"
	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/app"
	"example.com/shop/internal/rest"
)

const (
	saleUnits     = 100
	saleCustomers = 5000
	saleClients   = 512         // customers that wait for an answer at the same time
	saleTime      = time.Minute // the time limit of a sale: a busy machine is slow
	saleRepeat    = time.Second // the time after which a customer repeats a request without a definite answer
)

// saleProduct is the hand grinder of the sample products.
var saleProduct = uuid.MustParse("01900000-0000-7000-8000-000000000003")

// flashSale sells the last units of a product to many customers when an operator requests it. Each customer orders one
// unit, and pays no order. One sale runs at a time.
type flashSale struct {
	process   *app.Process
	orders    Orders
	busy      atomic.Bool    // a sale is being started, or runs
	requested chan time.Time // received by run: when the stock was set; buffered by one, because busy admits one sale

	mu    sync.Mutex
	state *saleState // of the sale that runs, or of the last one; nil before the first
	began time.Time
}

// saleState describes a flash sale.
type saleState struct {
	Running   bool           `json:"running"`
	Product   string         `json:"product"`
	Units     int            `json:"units"`
	Customers int            `json:"customers"`
	Sold      int            `json:"sold"`
	Refused   map[string]int `json:"refused"`  // customers by the code of the problem
	Failed    int            `json:"failed"`   // customers without a definite answer
	Returned  int            `json:"returned"` // units of cancelled orders that were for sale again before the sale ended
	Seconds   float64        `json:"seconds"`
}

func newFlashSale(p *app.Process, orders Orders) *flashSale {
	return &flashSale{process: p, orders: orders, requested: make(chan time.Time, 1)}
}

// start is the handler of POST /ops/api/faults/flash-sale. It sets the stock, so that a database that is down fails the
// request and not the sale.
func (s *flashSale) start(c *gin.Context) error {
	if !s.busy.CompareAndSwap(false, true) {
		return rest.Busy.Errorf("A flash sale is under way. Repeat the request when it has ended.")
	}
	name, stockedAt, err := s.stock(c.Request.Context())
	if err != nil {
		s.busy.Store(false)
		return err
	}
	s.mu.Lock()
	s.began = time.Now()
	s.state = &saleState{Running: true, Product: name, Units: saleUnits, Customers: saleCustomers, Refused: map[string]int{}}
	s.mu.Unlock()
	s.requested <- stockedAt
	s.process.Log.Warn("flash sale started", "product", name, "units", saleUnits, "customers", saleCustomers)
	c.Status(http.StatusAccepted)
	return nil
}

// stock makes exactly saleUnits of the product available. The units of its pending and paid orders stay part of the
// supply. stock returns the product's name, and the database's time.
func (s *flashSale) stock(ctx context.Context) (name string, at time.Time, err error) {
	err = s.process.Pool.QueryRowContext(ctx, `
		UPDATE products SET supply = supply - available + $2, available = $2 WHERE id = $1
		RETURNING name, clock_timestamp()`, saleProduct, saleUnits).Scan(&name, &at)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("set the stock for a flash sale: %w", err)
	}
	return name, at, nil
}

// run runs the sales that operators request, until ctx ends.
func (s *flashSale) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case stockedAt := <-s.requested:
			s.sell(ctx)
			s.end(ctx, stockedAt)
		}
	}
}

// sell lets all customers buy, saleClients of them at the same time.
func (s *flashSale) sell(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, saleTime)
	defer cancel()
	var customers errgroup.Group
	customers.SetLimit(saleClients)
	for range saleCustomers {
		customers.Go(func() error {
			s.count(s.buy(ctx))
			return nil
		})
	}
	_ = customers.Wait() // the functions return no errors
}

// buy orders one unit for a new customer. It repeats a request that has no definite answer, for the same
// customer.
func (s *flashSale) buy(ctx context.Context) error {
	customer := newCustomer()
	return retry.Do(ctx, retry.NewConstant(saleRepeat), func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, app.RequestTimeout)
		defer cancel()
		err := s.orders.PlaceOne(ctx, customer, saleProduct)
		if err != nil && rest.AsError(err).Class.Status == http.StatusServiceUnavailable {
			return retry.RetryableError(err)
		}
		return err
	})
}

// count counts the answer to a customer.
func (s *flashSale) count(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.state.Sold++
		return
	}
	class := rest.AsError(err).Class
	if class.Status >= http.StatusInternalServerError {
		s.state.Failed++
		return
	}
	s.state.Refused[class.Code]++
}

// end records the result of a sale.
func (s *flashSale) end(ctx context.Context, stockedAt time.Time) {
	took := time.Since(s.began)
	returned, err := s.returned(ctx, stockedAt)
	if err != nil && ctx.Err() == nil {
		s.process.Log.Warn("the units that were returned during the flash sale are unknown; the operators' page shows none", "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Running, s.state.Returned, s.state.Seconds = false, returned, took.Seconds()
	s.process.Log.Info("flash sale ended", "sold", s.state.Sold, "refused", s.state.Refused, "failed", s.state.Failed,
		"returned", returned, "took", took.String())
	s.busy.Store(false)
}

// returned returns how many units of the product were returned to the stock by cancelled orders since a time. A sale
// can sell these units too.
func (s *flashSale) returned(ctx context.Context, since time.Time) (units int, err error) {
	err = s.process.Pool.QueryRowContext(ctx, `
		SELECT coalesce(sum(i.quantity), 0)
		FROM orders o JOIN order_items i ON i.order_id = o.id
		WHERE o.cancelled_at > $2 AND i.product_id = $1`, saleProduct, since).Scan(&units)
	if err != nil {
		return 0, fmt.Errorf("sum the units of cancelled orders: %w", err)
	}
	return units, nil
}

// snapshot returns the state of the sale that runs, or of the last one. It returns nil before the first.
func (s *flashSale) snapshot() *saleState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == nil {
		return nil
	}
	state := *s.state
	state.Refused = maps.Clone(state.Refused)
	if state.Running {
		state.Seconds = time.Since(s.began).Seconds()
	}
	return &state
}
