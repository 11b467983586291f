package e2e

import (
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
)

// The default bounds on what a customer has not paid.
const (
	defaultOpenOrders = 10
	defaultOpenUnits  = 20
)

// tooMany is the problem that rejects an order because of a bound.
type tooMany struct {
	Type       string
	OpenOrders []string `json:"open_orders"`
	Errors     []struct{ Pointer string }
}

// TestOpenOrders sends 50 requests of one customer at the same time. At no time may the customer have more open orders
// than the default bound.
func TestOpenOrders(t *testing.T) {
	c := anyShop(t).SignUp()
	const requests = 50
	var mu sync.Mutex
	var placed []string
	var rejected []tooMany
	var sent sync.WaitGroup
	for range requests {
		sent.Go(func() {
			a, err := c.Try(orders.Create(shoptest.OneOfBeans, ""))
			for i := 0; i < 100 && err == nil && a.Rejected == faulttest.RejectedOverloaded; i++ { // on a slow machine
				<-time.After(10 * time.Millisecond)
				a, err = c.Try(orders.Create(shoptest.OneOfBeans, ""))
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				t.Error(err)
			case a.Status == http.StatusCreated:
				placed = append(placed, faulttest.Decode[shoptest.Order](t, a).ID)
			case a.Status == http.StatusConflict:
				rejected = append(rejected, faulttest.Decode[tooMany](t, a))
			default:
				t.Errorf("status %d: %s", a.Status, a.Body)
			}
		})
	}
	sent.Wait()
	for _, id := range placed {
		c.Send(orders.Cancel(id)) // on a slow machine some have timed out
	}

	if len(placed) < defaultOpenOrders || len(placed)+len(rejected) != requests {
		t.Errorf("%d orders placed and %d rejected, want %d together and at least %d placed", len(placed), len(rejected), requests, defaultOpenOrders)
	}
	for _, r := range rejected {
		foreign := func(id string) bool { return !slices.Contains(placed, id) }
		if r.Type != "/problems/too-many-open-orders" || len(r.OpenOrders) != defaultOpenOrders || slices.ContainsFunc(r.OpenOrders, foreign) {
			t.Errorf("problem %+v, want /problems/too-many-open-orders with %d of the orders %v", r, defaultOpenOrders, placed)
		}
	}
	type life struct {
		CreatedAt   time.Time `json:"created_at"`
		CancelledAt time.Time `json:"cancelled_at"`
	}
	var lives []life
	for _, id := range placed {
		lives = append(lives, faulttest.Decode[life](t, c.Expect(http.StatusOK, orders.Get(id))))
	}
	for _, l := range lives {
		open := 0
		for _, other := range lives {
			if !other.CreatedAt.After(l.CreatedAt) && other.CancelledAt.After(l.CreatedAt) {
				open++
			}
		}
		if open > defaultOpenOrders {
			t.Errorf("%d orders were open at %v, want at most %d: %+v", open, l.CreatedAt, defaultOpenOrders, lives)
		}
	}
	c.Post(http.StatusOK, "/api/orders/"+place(c).ID+"/pay") // cancelled orders do not count
}

// TestOpenUnits places orders until their units reach the default bound.
func TestOpenUnits(t *testing.T) {
	c := anyShop(t).SignUp()
	all := `{"items":[{"product_id":"` + shoptest.Beans + `","quantity":20}]}`
	faulttest.Eventually(t, "an order beyond the bound before the deadline of the first", func() bool {
		first := faulttest.Decode[shoptest.Order](t, c.Expect(http.StatusCreated, orders.Create(all, "")))
		more := c.Send(orders.Create(shoptest.OneOfBeans, ""))
		if more.Status == http.StatusCreated { // the first one may have timed out
			c.Send(orders.Cancel(faulttest.Decode[shoptest.Order](t, more).ID))
			if c.Send(orders.Cancel(first.ID)).Status == http.StatusOK {
				t.Fatalf("an order for one more unit was placed while %d units were open", defaultOpenUnits)
			}
			return false
		}
		c.Send(orders.Cancel(first.ID))
		problem := faulttest.Decode[tooMany](t, more)
		if more.Status != http.StatusConflict || problem.Type != "/problems/too-many-open-orders" ||
			!slices.Equal(problem.OpenOrders, []string{first.ID}) || len(problem.Errors) != 1 || problem.Errors[0].Pointer != "/items/0/quantity" {
			t.Errorf("status %d, problem %+v, want 409, /problems/too-many-open-orders, the order %s and an error of the line's quantity",
				more.Status, problem, first.ID)
		}
		return true
	})
}
