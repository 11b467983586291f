package faulttest

import (
	"testing"
	"time"
)

// TestExhausted rejects customers who want three of ten units of a shared row, and checks which rejections are accepted.
func TestExhausted(t *testing.T) {
	const began, rejected, late = time.Second, 2 * time.Second, 3 * time.Second
	for name, test := range map[string]struct {
		taken     []holder
		exhausted bool
	}{
		"nothing taken":       {nil, false},
		"two left":            {[]holder{{began, 8}}, true},
		"two left only later": {[]holder{{late, 8}}, false},
		"three left":          {[]holder{{began, 7}}, false},
	} {
		shared := &SharedRows{Units: func(string) map[string]int { return map[string]int{"table": 3} }}
		l := &Load{
			supplies: map[string]int{"table": 10},
			d:        &Deployment{Site: &Site{Service: &Service{Shared: shared}}},
		}
		if got := l.exhausted("", rejected, map[string][]holder{"table": test.taken}); got != test.exhausted {
			t.Errorf("%s: exhausted %v, want %v", name, got, test.exhausted)
		}
	}
}
