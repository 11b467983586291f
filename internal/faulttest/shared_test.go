package faulttest

import (
	"testing"
	"time"
)

// TestExhausted rejects customers who want three units of a shared row, and checks which rejections are accepted. In a
// row of eleven seats, for instance, three persons find no seats side by side if the third, the sixth and the ninth
// seat are taken: the eight free ones are in four pieces of two.
func TestExhausted(t *testing.T) {
	const began, rejected, late = time.Second, 2 * time.Second, 3 * time.Second
	for name, test := range map[string]struct {
		together  bool
		stocked   int // the units after Stock
		supply    int // the free units when the load began
		taken     []holder
		exhausted bool
	}{
		"nothing taken":                         {false, 10, 10, nil, false},
		"two left":                              {false, 10, 10, []holder{{began, 8}}, true},
		"two left only later":                   {false, 10, 10, []holder{{late, 8}}, false},
		"three left":                            {false, 10, 10, []holder{{began, 7}}, false},
		"together, nothing taken":               {true, 10, 10, nil, false},
		"together, two taken: a piece of three": {true, 11, 11, []holder{{began, 1}, {began, 1}}, false},
		"together, three taken":                 {true, 11, 11, []holder{{began, 2}, {began, 1}}, true},
		"together, three taken only later":      {true, 11, 11, []holder{{began, 2}, {late, 1}}, false},
		"together, taken before the load":       {true, 11, 8, nil, true},
	} {
		l := &Load{
			supplies: map[string]int{"table": test.supply},
			d: &Deployment{
				stocked: map[string]int{"table": test.stocked},
				Site: &Site{Service: &Service{Shared: &SharedRows{
					Together: test.together, Units: func(string) map[string]int { return map[string]int{"table": 3} },
				}}},
			},
		}
		if got := l.exhausted("", rejected, map[string][]holder{"table": test.taken}); got != test.exhausted {
			t.Errorf("%s: exhausted %v, want %v", name, got, test.exhausted)
		}
	}
}
