package payment_test

import (
	"cmp"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"example.com/shop/internal/testenv"
	"example.com/shop/payments/internal/provider"
)

// TestAmount checks the decimals of amounts. A customer was told that an order of 40 yen costs 0.40 JPY.
func TestAmount(t *testing.T) {
	for _, test := range []struct {
		n          int64
		code, want string
	}{
		{1234, "EUR", "12.34 EUR"}, {5, "USD", "0.05 USD"}, {-5, "USD", "-0.05 USD"}, {0, "CHF", "0.00 CHF"},
		{40, "JPY", "40 JPY"}, {0, "JPY", "0 JPY"}, {17500, "HUF", "175.00 HUF"}, {100, "IDR", "1.00 IDR"},
		{1230, "KWD", "1.230 KWD"}, {-7, "KWD", "-0.007 KWD"}, {5, "IQD", "0.005 IQD"}, {12345, "CLF", "1.2345 CLF"},
		{math.MaxInt64, "EUR", "92233720368547758.07 EUR"}, {100, "QQQ", "1.00 QQQ"},
	} {
		if got := provider.Amount(test.n, test.code); got != test.want {
			t.Errorf("Amount(%d, %q) = %q, want %q", test.n, test.code, got, test.want)
		}
	}
}

// TestPagesHaveTheSameDecimals compares the decimals of all currencies with those of the pages.
func TestPagesHaveTheSameDecimals(t *testing.T) {
	script, err := os.ReadFile("../../../web/assets/dom.js")
	testenv.Must(t, err)
	ofPages := map[string]string{}
	for _, entry := range regexp.MustCompile(`\b([A-Z]{3}): (\d)`).FindAllStringSubmatch(string(script), -1) {
		ofPages[entry[1]] = entry[2]
	}
	for i := range 26 * 26 * 26 {
		code := string([]rune{rune('A' + i/676), rune('A' + i/26%26), rune('A' + i%26)})
		_, fraction, _ := strings.Cut(strings.TrimSuffix(provider.Amount(1, code), " "+code), ".")
		if want := cmp.Or(ofPages[code], "2"); strconv.Itoa(len(fraction)) != want {
			t.Errorf("%s has %d decimals here, and %s on the pages", code, len(fraction), want)
		}
	}
}
