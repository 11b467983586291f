package order

import (
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"example.com/shop/internal/rest"
)

// minimum has the smallest total of an order in cents, by currency. A currency that it lacks has none.
type minimum map[string]int64

// orNull returns the minimum as an argument of place.sql, NULL for none.
func (m minimum) orNull() any {
	if len(m) == 0 {
		return nil
	}
	text, _ := json.Marshal(m) // a map of numbers always has a JSON text
	return string(text)
}

// tooSmall returns the reason why a placement is rejected if its total is too small. All its products exist, and have one
// currency.
func (m minimum) tooSmall(p Placement, products map[uuid.UUID]Product) *rest.Error {
	var total int64
	for _, line := range p.Lines {
		total += products[line.ProductID].PriceCents * line.Quantity
	}
	code := products[p.Lines[0].ProductID].Currency
	if total >= m[code] {
		return nil
	}
	return TotalTooSmall.Errorf("The order costs %s, and customers cannot pay less than %s: order more.",
		Amount(total, code), Amount(m[code], code))
}

// decimals has the numbers of decimals of the currencies that do not have two, as ISO 4217 lists them. CLDR, from which
// golang.org/x/text and browsers take theirs, has others for currencies whose small coins are out of use, such as HUF. The
// pages have the same table in dom.js.
var decimals = map[string]int{
	"BIF": 0, "CLP": 0, "DJF": 0, "GNF": 0, "ISK": 0, "JPY": 0, "KMF": 0, "KRW": 0, "PYG": 0, "RWF": 0, "UGX": 0, "UYI": 0,
	"VND": 0, "VUV": 0, "XAF": 0, "XOF": 0, "XPF": 0,
	"BHD": 3, "IQD": 3, "JOD": 3, "KWD": 3, "LYD": 3, "OMR": 3, "TND": 3,
}

// Amount returns an amount of the smallest unit of a currency as text, with the decimals of the currency: "12.34 EUR",
// "40 JPY". The code is that of ISO 4217.
func Amount(n int64, code string) string {
	decimals, listed := decimals[code]
	if !listed {
		decimals = 2
	}
	sign := ""
	if n < 0 {
		sign, n = "-", -n
	}
	digits := fmt.Sprintf("%0*d", decimals+1, n)
	whole, rest := digits[:len(digits)-decimals], digits[len(digits)-decimals:]
	if rest != "" {
		rest = "." + rest
	}
	return sign + whole + rest + " " + code
}
