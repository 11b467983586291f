package widget

import (
	"maps"
	"testing"

	"example.com/shop/internal/testenv"
)

// TestMain runs the tests, or the store, because [Run] starts its own executable again.
func TestMain(m *testing.M) {
	Child()
	testenv.Main(m)
}

// TestWidgetStore checks what is always the same about the outcomes.
func TestWidgetStore(t *testing.T) {
	const some = -1000 // depends on the moment
	cancelled, dispatched := map[string]int{"cancelled": 1}, map[string]int{"dispatched": 1}
	tests := []struct {
		question                string // of [Run], in their order
		orders                  map[string]int
		answered, unread, stock int // payments answered with 200; unread payments; missing units
		kept                    bool
	}{
		{"late payment", cancelled, 1, 1, 0, false},
		{"payments at the timeout", nil, 40, some, 0, false},
		{"restart while waiting", dispatched, 1, 0, 0, true},
		{"down at the timeout", cancelled, 0, 0, 0, true},
		{"statement cancelled", cancelled, 1, 1, 0, false},
		{"crash while taking", nil, some, 1, some, false},
		{"down while returning, step", cancelled, 0, 0, 1, false},
		{"down while returning, transaction", cancelled, 0, 0, 0, true},
		{"crash while returning, transaction", cancelled, 0, 0, 1, false},
		{"killed after create, step", map[string]int{"cancelled": 1, "pending": 1}, 0, 0, 0, false},
		{"killed after create, transaction", cancelled, 0, 0, 0, true},
		{"killed after reserve, step", cancelled, 0, 0, 1, false},
		{"killed after reserve, transaction", cancelled, 0, 0, 0, true},
		{"killed after return, step", cancelled, 0, 0, -1, false},
		{"killed after return, transaction", cancelled, 0, 0, 0, true},
	}
	findings, err := Run(t.Context(), testenv.PostgresServer(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	if len(findings) != len(tests) {
		t.Fatalf("%d findings, want %d", len(findings), len(tests))
	}
	for i, tt := range tests {
		t.Run(tt.question, func(t *testing.T) {
			f := findings[i]
			t.Logf("%s %s; errors: %q", f.Question, f.Happened, f.Happened.Errors)
			if tt.orders != nil && !maps.Equal(f.Happened.Orders, tt.orders) {
				t.Errorf("the orders are %v, want %v", f.Happened.Orders, tt.orders)
			}
			for _, n := range []struct {
				name      string
				got, want int
			}{
				{"payments answered with 200", f.Happened.Answers[200], tt.answered},
				{"unread payments", f.Happened.Unread, tt.unread},
				{"missing units", f.Happened.Missing, tt.stock},
			} {
				if n.want != some && n.got != n.want {
					t.Errorf("%s: %d, want %d", n.name, n.got, n.want)
				}
			}
			if f.Kept != tt.kept {
				t.Errorf("kept %v, want %v", f.Kept, tt.kept)
			}
		})
	}
	atTimeout := findings[1].Happened
	if n := atTimeout.Orders["cancelled"]; atTimeout.Unread != n || n+atTimeout.Orders["dispatched"] != 40 {
		t.Errorf("payments at the timeout: %v, want that each is read and dispatched, or unread and cancelled", atTimeout)
	}
}
