package rest_test

import (
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"example.com/shop/internal/rest"
)

// TestInteger checks that JSON numbers count by their value, as in JSON Schema, and not by how they are written.
func TestInteger(t *testing.T) {
	for _, test := range []struct {
		number any
		want   int64
		ok     bool
	}{
		{jsontext.Value("1"), 1, true}, {jsontext.Value("1.0"), 1, true}, {jsontext.Value("1e0"), 1, true},
		{jsontext.Value("10e-1"), 1, true}, {jsontext.Value("1.50E+2"), 150, true}, {jsontext.Value("-2.00"), -2, true},
		{jsontext.Value("0"), 0, true}, {jsontext.Value("-0.0"), 0, true}, {jsontext.Value("0e999999999999999999999"), 0, true},
		{jsontext.Value("0.001e3"), 1, true}, {jsontext.Value("9223372036854775807.0"), 1<<63 - 1, true},
		{jsontext.Value("-9223372036854775808"), -1 << 63, true}, {jsontext.Value("1e18"), 1e18, true},
		{jsontext.Value("1.5"), 0, false}, {jsontext.Value("1e-1"), 0, false}, {jsontext.Value("9223372036854775808"), 0, false},
		{jsontext.Value("1e19"), 0, false}, {jsontext.Value("1e400"), 0, false}, {jsontext.Value("1e-400"), 0, false},
		{jsontext.Value("1e999999999999999999999"), 0, false}, {jsontext.Value("1e-999999999999999999999"), 0, false},
		{jsontext.Value(""), 0, false}, {"1", 0, false}, {true, 0, false}, {nil, 0, false},
	} {
		if got, ok := rest.Integer(test.number); got != test.want || ok != test.ok {
			t.Errorf("Integer(%#v) returns %d, %v; want %d, %v", test.number, got, ok, test.want, test.ok)
		}
	}
}

// TestIntegerOfAnyNumber compares the results with exact fractions.
func TestIntegerOfAnyNumber(t *testing.T) {
	digits := rapid.StringMatching(`[0-9]{1,25}`)
	rapid.Check(t, func(t *rapid.T) {
		text := "0"
		if whole := strings.TrimLeft(digits.Draw(t, "whole"), "0"); whole != "" {
			text = whole
		}
		text = rapid.SampledFrom([]string{"", "-"}).Draw(t, "sign") + text
		if rapid.Bool().Draw(t, "has a fraction") {
			text += "." + digits.Draw(t, "fraction")
		}
		if rapid.Bool().Draw(t, "has an exponent") {
			text += fmt.Sprintf("e%+d", rapid.IntRange(-60, 60).Draw(t, "exponent"))
		}
		exact, ok := new(big.Rat).SetString(text)
		if !ok {
			t.Fatalf("%s is no number", text)
		}
		ok = exact.IsInt() && exact.Num().IsInt64()
		got, gotOK := rest.Integer(jsontext.Value(text))
		if gotOK != ok || ok && got != exact.Num().Int64() {
			t.Fatalf("Integer(%s) returns %d, %v; it is %s", text, got, gotOK, exact)
		}
	})
}
