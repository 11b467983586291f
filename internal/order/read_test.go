package order_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

// TestFind finds an order by its id and by that of a row of another package.
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
}
