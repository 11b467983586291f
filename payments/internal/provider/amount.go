package provider

import "fmt"

// decimals has the numbers of decimals of the currencies that do not have two, as ISO 4217 lists them. Amounts in the
// database and in the API are in the unit that follows from them. CLDR, from which golang.org/x/text/currency and
// browsers take theirs, cannot replace the table: it has no decimals for currencies whose small coins are out of use,
// such as IDR, COP and PKR, and for IQD, which has three. A browser also has none for HUF. The pages have the same
// table in dom.js.
var decimals = map[string]int{
	"BIF": 0, "CLP": 0, "DJF": 0, "GNF": 0, "ISK": 0, "JPY": 0, "KMF": 0, "KRW": 0, "PYG": 0, "RWF": 0, "UGX": 0,
	"UYI": 0, "VND": 0, "VUV": 0, "XAF": 0, "XOF": 0, "XPF": 0,
	"BHD": 3, "IQD": 3, "JOD": 3, "KWD": 3, "LYD": 3, "OMR": 3, "TND": 3,
	"CLF": 4, "UYW": 4,
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
