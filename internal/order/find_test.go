package order_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/testenv"
)

// TestFind finds an order by its id and by that of a row of another package, and reads its rows.
func TestFind(t *testing.T) {
	t.Parallel()
	other := &dependent{}
	s := newShop(t, with(other))
	id := s.MustPlace(t, s.Customer(t), line(s.Product(t, 1), 1)).ID
	other.owed = []uuid.UUID{id}
	for text, want := range map[string]bool{
		id.String(): true, strings.ToUpper(id.String()): true, "other": true,
		uuid.NewString(): false, "another": false, "": false,
	} {
		got, found, err := s.Find(t.Context(), text)
		if err != nil || found != want || found && got != id {
			t.Errorf("Find of %q returns %v, %v, %v; want the order: %v", text, got, found, err, want)
		}
	}
	rows, owed, err := s.Rows(t.Context(), id)
	testenv.Must(t, err)
	tables := map[string]bool{}
	for _, r := range rows {
		// The entries of a trail have no id of the order.
		tables[r.Table] = r.OrderID == id && (r.Table == "order_trail" || strings.Contains(r.Rows, id.String()))
	}
	if !owed || len(rows) != 4 || !tables["orders"] || !tables["order_items"] || !tables["order_trail"] || !tables["others"] {
		t.Errorf("the rows are %+v, and something is owed: %v; want those of three tables and a view, and true", rows, owed)
	}
}
