package rest_test

import (
	"strconv"
	"testing"

	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
)

func TestInteger(t *testing.T) {
	const most = 1<<53 - 1
	for _, test := range []struct {
		number string
		want   int64
		ok     bool
	}{
		{"1", 1, true}, {"1.0", 1, true}, {"1e0", 1, true}, {"10e-1", 1, true}, {"1.50E+2", 150, true}, {"-2.00", -2,
			true},
		{"0", 0, true}, {"-0.0", 0, true}, {"0e999999999999999999999", 0, true}, {"0.001e3", 1, true},
		{"9007199254740991", most, true}, {"-9007199254740991.0", -most, true},
		{"1.5", 0, false}, {"1e-1", 0, false}, {"9007199254740993", 0, false}, {"1e300", 0, false},
	} {
		number, err := strconv.ParseFloat(test.number, 64)
		testenv.Must(t, err)
		if got, ok := rest.Integer(number); got != test.want || ok != test.ok {
			t.Errorf("Integer(%s) returns %d, %v; want %d, %v", test.number, got, ok, test.want, test.ok)
		}
	}
	for _, value := range []any{"1", true, nil} {
		if _, ok := rest.Integer(value); ok {
			t.Errorf("Integer(%#v) accepts what is no number", value)
		}
	}
}
