package order_test

import (
	"slices"
	"testing"

	"example.com/shop/internal/order"
)

// TestNamedParameters checks that comments and texts have no parameters, and that a statement with other parameters
// than its caller is refused at the start of the program.
func TestNamedParameters(t *testing.T) {
	arguments := map[string]any{"a": 1, "b": 2}
	const source = "-- @c isn't one\nSELECT @b::int, '@d', @a, @b /* @e */"
	s := order.NewNamed(source, arguments)
	if want := "-- @c isn't one\nSELECT $1::int, '@d', $2, $1 /* @e */"; s.Text() != want {
		t.Errorf("the numbered statement is %q, want %q", s.Text(), want)
	}
	if got := s.Values(arguments); !slices.Equal(got, []any{2, 1}) {
		t.Errorf("the arguments are %v, want 2 and 1", got)
	}
	for what, names := range map[string]map[string]any{
		"a parameter that its caller lacks": {"a": 1},
		"no parameter for an argument":      {"a": 1, "b": 2, "c": 3},
	} {
		t.Run(what, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("the statement is accepted, want a panic")
				}
			}()
			order.NewNamed(source, names)
		})
	}
}
