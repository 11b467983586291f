package demo

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"example.com/shop/internal/app"
	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m, migrations.Up) }

// testApp is a process with orders.
type testApp struct {
	*app.Process
	orders *order.Service
	store  *order.Store
}

func newTestApp(t *testing.T) *testApp {
	t.Helper()
	cfg, log := app.Config{
		Name: "test", DatabaseURL: testenv.Postgres(t), DatabaseConns: 20, RedisURL: testenv.Redis(t), QueueShards: 1,
	}, slog.New(slog.DiscardHandler)
	connections, err := app.Connect(t.Context(), cfg, log)
	testenv.Must(t, err)
	p := app.New(connections, cfg, log)
	t.Cleanup(p.Close)
	cancel, err := p.NewKind(order.CancelKind)
	testenv.Must(t, err)
	orders, err := order.Add(p, cancel, order.Options{OrderTimeout: time.Hour}, nil, order.Hooks{})
	testenv.Must(t, err)
	return &testApp{p, orders, order.NewStore(p.DB)}
}

// PlaceOne implements [Orders].
func (a *testApp) PlaceOne(ctx context.Context, customer, product uuid.UUID) error {
	_, _, err := a.orders.Place(ctx, customer, order.Placement{
		IdempotencyKey: customer.String(), Lines: []order.Line{{ProductID: product, Quantity: 1}},
	})
	return err
}

// TestFlashSaleStops stops the process during a flash sale, while another session locks the product. The sale must end at
// once, and no invariant may break. A goroutine that stays behind fails the package's tests. The product has a pending
// order from before the sale.
func TestFlashSaleStops(t *testing.T) {
	a := newTestApp(t)
	testenv.Must(t, a.store.SeedProducts(t.Context()))
	placement := order.Placement{Lines: []order.Line{{ProductID: saleProduct, Quantity: 7}}}
	customer := a.orders.SignUp()
	before, _, err := a.orders.Place(t.Context(), customer, placement)
	testenv.Must(t, err)

	sale := newFlashSale(a.Process, a)
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.POST("/", rest.Handle(sale.start))
	start := func() int {
		answer := httptest.NewRecorder()
		r.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody))
		return answer.Code
	}
	if state := sale.snapshot(); state != nil {
		t.Errorf("the state before the first sale is %+v, want nil", state)
	}
	if got := start(); got != http.StatusAccepted {
		t.Fatalf("a flash sale is answered with %d, want 202", got)
	}
	if got := availableOf(t, a); got != saleUnits {
		t.Errorf("a flash sale begins with %d available units, want %d", got, saleUnits)
	}

	if got := start(); got != http.StatusConflict {
		t.Errorf("a second flash sale is answered with %d, want 409", got)
	}
	_, err = a.orders.Cancel(t.Context(), customer, before.ID)
	testenv.Must(t, err)

	release := testenv.HoldLock(t, a.Pool, `SELECT FROM products WHERE id = $1 FOR UPDATE`, saleProduct)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- sale.run(ctx) }()
	testenv.AwaitLockWait(t, a.Pool)
	stop()
	stopped := time.Now()
	testenv.Must(t, <-ended)
	if took := time.Since(stopped); took > 10*time.Second { // a second, on a machine that is not busy
		t.Errorf("a stopped sale ended after %v, want about a second at most", took)
	}
	release()

	state := sale.snapshot()
	if state.Running || state.Sold != 0 || state.Failed != saleCustomers {
		t.Errorf("the state after the sale is %+v, want it not running, and no answer for each of %d customers", state, saleCustomers)
	}
	if violations, err := a.Violations(t.Context()); err != nil || len(violations) > 0 {
		t.Errorf("after the sale the violations are %v, %v; want none", violations, err)
	}
	if returned, err := sale.returned(t.Context(), before.CreatedAt); err != nil || returned != 7 {
		t.Errorf("%d units were returned, %v; want the 7 of the cancelled order", returned, err)
	}
	if got := start(); got != http.StatusAccepted {
		t.Errorf("another flash sale after the first is answered with %d, want 202", got)
	}
}

// availableOf returns the available units of the product of the flash sale.
func availableOf(t *testing.T, a *testApp) int64 {
	t.Helper()
	products, err := a.orders.Products(t.Context())
	testenv.Must(t, err)
	for _, product := range products {
		if product.ID == saleProduct {
			return product.Available
		}
	}
	t.Fatal("the product of the flash sale does not exist")
	return 0
}
