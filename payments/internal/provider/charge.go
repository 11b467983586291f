package provider

// Charge is what Stripe charges at a time in a currency, in the currency's smallest unit: see [Amount]. A Most of 0 says
// that Stripe does not charge the currency, or counts it in another unit.
//
// Stripe compares the least amount with the amount in the account's currency of settlement: the table is right for an
// account that settles in the same currency. See https://docs.stripe.com/currencies.
type Charge struct {
	Least    int64
	Most     int64
	Multiple int64 // each amount is one of it
}

const (
	eightDigits  = 99_999_999
	twelveDigits = 999_999_999_999
	noMinimum    = 1
	otherwise    = "" // the currency code of all currencies that the table does not name
)

var never = Charge{} // that of a currency which Stripe does not charge

var charges = map[string]Charge{
	otherwise: {noMinimum, eightDigits, 1},

	"AED": {200, eightDigits, 1}, "AUD": {50, eightDigits, 1}, "BGN": {100, eightDigits, 1},
	"BRL": {50, eightDigits, 1}, "CAD": {50, eightDigits, 1}, "CHF": {50, eightDigits, 1},
	"CZK": {1500, eightDigits, 1}, "DKK": {250, eightDigits, 1}, "EUR": {50, eightDigits, 1},
	"GBP": {30, eightDigits, 1}, "HKD": {400, eightDigits, 1}, "INR": {50, eightDigits, 1},
	"JPY": {50, eightDigits, 1}, "MXN": {1000, eightDigits, 1}, "MYR": {200, eightDigits, 1},
	"NOK": {300, eightDigits, 1}, "NZD": {50, eightDigits, 1}, "PLN": {200, eightDigits, 1},
	"RON": {200, eightDigits, 1}, "SEK": {300, eightDigits, 1}, "SGD": {50, eightDigits, 1},
	"THB": {1000, eightDigits, 1}, "USD": {50, eightDigits, 1},

	// Units of little value have more digits.
	"COP": {noMinimum, twelveDigits, 1}, "HUF": {17500, twelveDigits, 1}, "IDR": {noMinimum, twelveDigits, 1},
	"LBP": {noMinimum, twelveDigits, 1},

	// The last of three decimals must be 0.
	"BHD": {noMinimum, eightDigits, 10}, "JOD": {noMinimum, eightDigits, 10}, "KWD": {noMinimum, eightDigits, 10},
	"OMR": {noMinimum, eightDigits, 10}, "TND": {noMinimum, eightDigits, 10},

	// Their units at Stripe are not those of ISO 4217: a customer would pay a hundred times too much or too little.
	"ISK": never, "MGA": never, "UGX": never,

	"CLF": never, "CUP": never, "IQD": never, "IRR": never, "KPW": never, "LYD": never, "SYP": never, "UYI": never,
	"UYW": never,
}

// ChargeOf returns what Stripe charges in a currency.
func ChargeOf(currency string) Charge {
	if c, named := charges[currency]; named {
		return c
	}
	return charges[otherwise]
}

// WhyNot returns the reason why Stripe does not charge an amount in a currency, or "" if it does.
func (c Charge) WhyNot(amount int64, currency string) string {
	switch {
	case c.Most == 0:
		return "the payment provider charges no " + currency
	case amount < c.Least:
		return "the payment provider charges no less than " + Amount(c.Least, currency)
	case amount > c.Most:
		return "the payment provider charges no more than " + Amount(c.Most, currency) + " at a time"
	case amount%c.Multiple != 0:
		return "the payment provider charges only multiples of " + Amount(c.Multiple, currency)
	}
	return ""
}
