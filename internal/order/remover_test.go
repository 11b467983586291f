package order_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/testenv"
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
	owed, locked, removed []uuid.UUID
}

func (d *dependent) LockForRemoval(_ *gorm.DB, ids []uuid.UUID) error {
	d.locked = append(d.locked, ids...)
	return nil
}

func (d *dependent) Owed(*gorm.DB, []uuid.UUID) ([]uuid.UUID, error) { return d.owed, nil }

func (d *dependent) Remove(_ *gorm.DB, ids []uuid.UUID) error {
	d.removed = append(d.removed, ids...)
	return nil
}

func (d *dependent) Export(_ *gorm.DB, ids []uuid.UUID) (rows []order.ExportedRows, err error) {
	for _, id := range ids {
		rows = append(rows, order.ExportedRows{OrderID: id, Table: "others", Rows: `[{"of":"` + id.String() + `"}]`})
	}
	return rows, nil
}

// OrderOf finds the first order of which something is owed, by the id "other".
func (d *dependent) OrderOf(_ *gorm.DB, id string) (uuid.UUID, bool, error) {
	if id != "other" {
		return uuid.Nil, false, nil
	}
	return d.owed[0], true, nil
}

// exportedLine is a line of an export: rows by the name of their table.
type exportedLine map[string][]map[string]any

// wantExport checks the numbers of an export and of a count, and returns the lines of the export.
func (s *shop) wantExport(t testing.TB, keep time.Duration, want order.Exported) (lines []exportedLine) {
	t.Helper()
	var out bytes.Buffer
	exported, err := s.Export(t.Context(), keep, &out, func(order.Exported) {})
	testenv.Must(t, err)
	counted, err := s.Export(t.Context(), keep, nil, func(order.Exported) {})
	testenv.Must(t, err)
	if exported != want || counted != want {
		t.Errorf("%+v are exported and %+v are counted, want %+v", exported, counted, want)
	}
	for in := json.NewDecoder(&out); in.More(); {
		var line exportedLine
		testenv.Must(t, in.Decode(&line))
		lines = append(lines, line)
	}
	if int64(len(lines)) != want.Orders {
		t.Errorf("the export has %d lines, want %d", len(lines), want.Orders)
	}
	return lines
}

// TestRemove exports and removes old orders. Those that are pending, not booked or too young stay, and so does one that another package
// keeps or another session has locked.
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
	s.wantExport(t, time.Hour, order.Exported{})
	lines := s.wantExport(t, time.Microsecond, order.Exported{Orders: 2, Owed: 1})
	s.remove(t, time.Microsecond, 2)
	for name, ids := range map[string][]uuid.UUID{"locked": other.locked, "removed": other.removed} {
		want := ended
		if name == "removed" {
			want = ended[1:]
		}
		if got := fmt.Sprint(ids); got != fmt.Sprint(want) {
			t.Errorf("the other package has %s the rows of %s, want those of %v", name, got, want)
		}
	}
	for i, line := range lines {
		if got := line["orders"][0]["id"]; got != ended[i+1] || len(line["order_items"]) != 1 || len(line["order_trail"]) != 3 || line["order_trail"][1]["type"] != "extended" || line["others"][0]["of"] != got {
			t.Errorf("line %d of the export is %v, want that of the order %s with an item, a trail of three entries and the row of the other package", i+1, line, ended[i+1])
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
