package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
)

// TestFlashSaleStops stops the process during a flash sale, while another session locks the product. The sale must end at
// once, and no invariant may break. A goroutine that stays behind fails the package's tests. The product has a pending
// order from before the sale.
func TestFlashSaleStops(t *testing.T) {
	a := newTestApp(t, testenv.Redis(t), 1)
	must(t, a.store.SeedProducts(t.Context()))
	placement := order.Placement{Lines: []order.Line{{ProductID: saleProduct, Quantity: 7}}}
	customer := a.orders.SignUp()
	before, _, err := a.orders.Place(t.Context(), customer, placement)
	must(t, err)

	sale := newFlashSale(a)
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
	must(t, err)

	lock, err := a.db.BeginTx(t.Context(), nil)
	must(t, err)
	_, err = lock.ExecContext(t.Context(), `SELECT FROM products WHERE id = $1 FOR UPDATE`, saleProduct)
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- sale.run(ctx) }()
	eventually(t, "a customer waits for the lock", func() bool {
		var waiting bool
		must(t, a.db.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waiting))
		return waiting
	})
	stop()
	stopped := time.Now()
	must(t, <-ended)
	if took := time.Since(stopped); took > 3*time.Second { // a second, on a machine that is not busy
		t.Errorf("a stopped sale ended after %v, want about a second at most", took)
	}
	must(t, lock.Rollback())

	state := sale.snapshot()
	if state.Running || state.Sold != 0 || state.Failed != saleCustomers {
		t.Errorf("the state after the sale is %+v, want it not running, and no answer for each of %d customers", state, saleCustomers)
	}
	if violations, err := a.violations(t.Context()); err != nil || len(violations) > 0 {
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
func availableOf(t *testing.T, a *app) int64 {
	t.Helper()
	products, err := a.orders.Products(t.Context())
	must(t, err)
	for _, product := range products {
		if product.ID == saleProduct {
			return product.Available
		}
	}
	t.Fatal("the product of the flash sale does not exist")
	return 0
}
