package order_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// remover returns a remover of the orders that ended longer ago than keep.
func (s *shop) remover(keep time.Duration) *order.Remover {
	return order.NewRemover(s.Service, keep, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
}

// remove removes the orders that ended longer ago than keep, and fails the test if their number is not the expected one.
func (s *shop) remove(t testing.TB, keep time.Duration, want int64) {
	t.Helper()
	if n, err := s.remover(keep).Remove(t.Context()); n != want || err != nil {
		t.Fatalf("Remove returns %d, %v; want %d", n, err, want)
	}
}

// wantRows checks how many orders, items and events there are.
func (s *shop) wantRows(t testing.TB, want [3]int) {
	t.Helper()
	var got [3]int
	for i, table := range []string{"orders", "order_items", "order_events"} {
		got[i] = testenv.Query[int](t, s.DB, `SELECT count(*) FROM `+table)
	}
	if got != want {
		t.Errorf("there are %v orders, items and events, want %v", got, want)
	}
}

// with makes a shop have a package whose rows refer to its orders.
func with(d *dependent) func(*order.Config) {
	return func(c *order.Config) { c.Dependents = append(c.Dependents, d) }
}

// dependent is a package whose rows refer to orders. It records its calls.
type dependent struct {
	owed, asked, removed []uuid.UUID
}

func (d *dependent) Owed(_ *gorm.DB, ids []uuid.UUID) ([]uuid.UUID, error) {
	d.asked = append(d.asked, ids...)
	return d.owed, nil
}

func (d *dependent) Remove(_ *gorm.DB, ids []uuid.UUID) error {
	d.removed = append(d.removed, ids...)
	return nil
}

// OrderOf finds the first order of which something is owed, by the id "other".
func (d *dependent) OrderOf(_ *gorm.DB, id string) (uuid.UUID, bool, error) {
	if id != "other" {
		return uuid.Nil, false, nil
	}
	return d.owed[0], true, nil
}

// TestRemove removes old orders. Those that are pending, not booked or too young stay, and so does one that another
// package keeps or another session has locked.
func TestRemove(t *testing.T) {
	t.Parallel()
	other := &dependent{}
	s := newShop(t, with(other))
	customer, product := s.endedOrders(t)
	s.remove(t, time.Microsecond, 0) // none is booked
	s.book(t, 3)
	s.remove(t, time.Hour, 0)
	s.wantRows(t, [3]int{4, 4, 4})

	paid := testenv.Query[uuid.UUID](t, s.DB, `SELECT id FROM orders WHERE status = 'paid' ORDER BY id LIMIT 1`)
	other.owed = []uuid.UUID{paid}
	ended := testenv.QueryAll[string](t, s.DB, `SELECT id::text FROM orders WHERE booked AND status <> 'pending' ORDER BY id`)
	s.remove(t, time.Microsecond, 2)
	for name, ids := range map[string][]uuid.UUID{"asked": other.asked, "told to remove": other.removed} {
		want := ended
		if name == "told to remove" {
			want = ended[1:]
		}
		if got := fmt.Sprint(ids); got != fmt.Sprint(want) {
			t.Errorf("the other package was %s: orders %s, want %v", name, got, want)
		}
	}
	s.wantRows(t, [3]int{2, 2, 2})
	s.CheckInvariants(t, 0)

	other.owed = nil
	unlock := testenv.HoldLock(t, s.DB, `SELECT FROM orders WHERE id = $1 FOR UPDATE`, paid)
	s.remove(t, time.Microsecond, 0)
	unlock()
	s.remove(t, time.Microsecond, 1)
	s.wantRows(t, [3]int{1, 1, 1})
	s.wantSold(t, product, 4)
	s.CheckInvariants(t, 0)

	// The books go on: what is sold later adds to them.
	s.Do(t, "pay", customer, s.place(t, customer, line(product, 2)).ID)
	s.book(t, 1)
	s.wantSold(t, product, 6)
	s.CheckInvariants(t, 0)
}

// TestArchiveOrders runs the statements of the document that archive old orders. They return the ended orders, each
// with its items, and their audit trails.
func TestArchiveOrders(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	_, product := s.endedOrders(t)
	const document = "../../docs/production.md"
	for i, rows := range parttest.Copied(t, s.URL, document, "2000-01-01") {
		if len(rows) > 0 {
			t.Errorf("statement %d returns %d rows of orders that ended before the year 2000, want none", i+1, len(rows))
		}
	}
	archived := parttest.Copied(t, s.URL, document, "9999-12-31")
	if len(archived) != 2 {
		t.Fatalf("the document has %d statements, want one for the orders and one for their trails", len(archived))
	}
	ended := testenv.QueryAll[string](t, s.DB, `SELECT id::text FROM orders WHERE status <> 'pending' ORDER BY id`)
	var orders []string
	for _, o := range archived[0] {
		orders = append(orders, o["id"])
		var items []struct {
			ProductID uuid.UUID `json:"product_id"`
			Quantity  int64     `json:"quantity"`
		}
		testenv.Must(t, json.Unmarshal([]byte(o["items"]), &items))
		if len(items) != 1 || items[0].ProductID != product || items[0].Quantity != 2 || o["total_cents"] != "200" {
			t.Errorf("the order %v is archived with the items %+v, want two units of %s for 200", o, items, product)
		}
	}
	if !slices.Equal(orders, ended) {
		t.Errorf("the orders %v are archived, want %v", orders, ended)
	}
	trails := map[string]string{}
	for _, entry := range archived[1] {
		trails[entry["order_id"]] += " " + entry["type"]
	}
	for i, id := range ended {
		want := []string{" placed rescheduled paid", " placed rescheduled paid", " placed rescheduled cancelled"}[i]
		if trails[id] != want {
			t.Errorf("the trail of the order %s is archived as%s, want%s", id, trails[id], want)
		}
	}
	if len(trails) != len(ended) {
		t.Errorf("the trails of %d orders are archived, want %d", len(trails), len(ended))
	}
}

// TestRemoveCrash interrupts a removal before each of its statements. A batch is removed as a whole, or not at all.
func TestRemoveCrash(t *testing.T) {
	t.Parallel()
	s := newShop(t, with(&dependent{}))
	_, product := s.endedOrders(t)
	s.book(t, 3)
	all, left := [3]int{4, 4, 4}, [3]int{1, 1, 1}
	crashes := 0
	ordertest.CrashEach(t, s.Gorm, s.DB, func() error {
		_, err := s.remover(time.Microsecond).Remove(t.Context())
		return err
	}, func() {
		crashes++
		if testenv.Query[int](t, s.DB, `SELECT count(*) FROM orders`) == 1 {
			all = left // of the batch that found no more orders
		}
		s.wantRows(t, all)
		s.CheckInvariants(t, 0)
	})
	if crashes < 2 {
		t.Errorf("the removal was interrupted %d times, want at least before the lock and before the deletion", crashes)
	}
	s.wantRows(t, left)
	s.wantSold(t, product, 4)
	s.CheckInvariants(t, 0)
}

// TestRemoveInBatches removes more orders than fit into one batch, while two removers and a booker run.
func TestRemoveInBatches(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.paidOrders(t, 1_200)
	errs := make(chan error, 3)
	go func() {
		_, err := s.booker().Book(t.Context())
		errs <- err
	}()
	for range 2 {
		go func() {
			_, err := s.remover(time.Microsecond).Remove(t.Context())
			errs <- err
		}()
	}
	for range 3 {
		testenv.Must(t, <-errs)
	}
	s.CheckInvariants(t, 0)
	s.remove(t, time.Microsecond, testenv.Query[int64](t, s.DB, `SELECT count(*) FROM orders`))
	s.wantRows(t, [3]int{})
	s.CheckInvariants(t, 0)
}
