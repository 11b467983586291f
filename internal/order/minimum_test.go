package order_test

import (
	"cmp"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestMinimumWhenPlacing places orders of which some cost less than customers can pay, each with its neighbours in one
// batch.
func TestMinimumWhenPlacing(t *testing.T) {
	s := newShop(t, func(c *order.Config) { c.Minimum = map[string]int64{"EUR": 250, "USD": 100} })
	higher := ordertest.NewAt(t, s.URL, func(c *order.Config) { c.Minimum = map[string]int64{"EUR": 1e6, "USD": 1e6, "JPY": 1e6} })
	euro, dollar, yen := s.Product(t, 100), s.ProductWithCurrency(t, 100, "USD"), s.ProductWithCurrency(t, 100, "JPY")
	second := s.Product(t, 1)
	for name, test := range map[string]struct {
		lines []order.Line
		class rest.Class // the zero class: the order is placed
	}{
		"too small":                     {[]order.Line{line(euro, 2)}, order.TotalTooSmall},
		"too small in two lines":        {[]order.Line{line(euro, 1), line(second, 1)}, order.TotalTooSmall},
		"large enough in two lines":     {[]order.Line{line(euro, 2), line(second, 1)}, rest.Class{}},
		"large enough":                  {[]order.Line{line(euro, 3)}, rest.Class{}},
		"the minimum":                   {[]order.Line{line(dollar, 1)}, rest.Class{}},
		"a currency without a minimum":  {[]order.Line{line(yen, 1)}, rest.Class{}},
		"unknown, and too small":        {[]order.Line{line(euro, 1), line(uuid.New(), 1)}, order.UnknownProduct},
		"two currencies, and too small": {[]order.Line{line(euro, 1), line(yen, 1)}, order.MixedCurrencies},
	} {
		t.Run(name, func(t *testing.T) {
			customer := s.Customer(t)
			o, _, err := s.Place(t.Context(), customer, order.Placement{Lines: test.lines, IdempotencyKey: "key"})
			if got := parttest.ClassOf(err); got != test.class {
				t.Fatalf("Place returns %v, %v; want the class %q", o, err, test.class.Code)
			}
			if test.class == order.TotalTooSmall && !strings.Contains(err.Error(), "2.50 EUR") {
				t.Errorf("Place returns %v, want the smallest amount in it", err)
			}
			if err == nil { // a repetition returns the order, whatever the minimum is now
				if _, replayed, err := higher.Place(t.Context(), customer, order.Placement{Lines: test.lines, IdempotencyKey: "key"}); err != nil || !replayed {
					t.Errorf("the repeated Place returns replayed %v, error %v; want the order", replayed, err)
				}
			}
		})
	}
	s.CheckInvariants(t, 0)
}

// TestAmount checks the decimals of amounts. A customer was told that an order of 40 yen costs 0.40 JPY.
func TestAmount(t *testing.T) {
	for _, test := range []struct {
		n          int64
		code, want string
	}{
		{1234, "EUR", "12.34 EUR"}, {5, "USD", "0.05 USD"}, {-5, "USD", "-0.05 USD"}, {0, "CHF", "0.00 CHF"},
		{40, "JPY", "40 JPY"}, {0, "JPY", "0 JPY"}, {17500, "HUF", "175.00 HUF"}, {100, "IDR", "1.00 IDR"}, {1230, "KWD", "1.230 KWD"}, {-7, "KWD", "-0.007 KWD"},
		{math.MaxInt64, "EUR", "92233720368547758.07 EUR"}, {100, "QQQ", "1.00 QQQ"},
	} {
		if got := order.Amount(test.n, test.code); got != test.want {
			t.Errorf("Amount(%d, %q) = %q, want %q", test.n, test.code, got, test.want)
		}
	}
}

// TestPagesHaveTheSameDecimals compares the decimals of all currencies with those of the pages.
func TestPagesHaveTheSameDecimals(t *testing.T) {
	script, err := os.ReadFile("../../web/assets/dom.js")
	testenv.Must(t, err)
	ofPages := map[string]string{}
	for _, entry := range regexp.MustCompile(`\b([A-Z]{3}): (\d)`).FindAllStringSubmatch(string(script), -1) {
		ofPages[entry[1]] = entry[2]
	}
	for i := range 26 * 26 * 26 {
		code := string([]rune{rune('A' + i/676), rune('A' + i/26%26), rune('A' + i%26)})
		_, fraction, _ := strings.Cut(strings.TrimSuffix(order.Amount(1, code), " "+code), ".")
		if want := cmp.Or(ofPages[code], "2"); strconv.Itoa(len(fraction)) != want {
			t.Errorf("%s has %d decimals here, and %s on the pages", code, len(fraction), want)
		}
	}
}
