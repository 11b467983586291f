package order_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

// TestWhereFindsOrders asks for an order by its id and by that of a row of another package.
func TestWhereFindsOrders(t *testing.T) {
	t.Parallel()
	other := &dependent{}
	s := newShop(t, with(other))
	id := s.MustPlace(t, s.Customer(t), line(s.Product(t, 1), 1)).ID
	other.owed = []uuid.UUID{id}
	for text, want := range map[string]bool{
		id.String(): true, strings.ToUpper(id.String()): true, "other": true,
		uuid.NewString(): false, "another": false, "": false,
	} {
		rows, err := s.Where(t.Context(), text)
		if err != nil || len(rows) > 0 != want || want && rows[0].ID != id.String() {
			t.Errorf("Where of %q returns %+v, %v; want the order %s: %v", text, rows, err, id, want)
		}
	}
}
