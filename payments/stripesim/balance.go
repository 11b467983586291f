package stripesim

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// settlementCurrency is the currency of the account's balance. Payments in other currencies are converted.
const settlementCurrency = "eur"

// exchangeRates are the amounts of the settlementCurrency's smallest unit for one smallest unit of other currencies.
var exchangeRates = map[string]float64{"usd": 0.9, "gbp": 1.15, "chf": 1.05, "jpy": 0.6, "kwd": 0.3}

// balanceID returns the id of the balance transaction of a source.
func balanceID(category, source string) string {
	_, name, _ := strings.Cut(source, "_")
	switch category {
	case "refund_failure", "dispute_reversal": // the second balance transaction of its source
		name += "_2"
	}
	return "txn_" + category[:1] + "_" + name
}

// book inserts a balance transaction. The amount is what the account gets: negative if money leaves it.
func book(ctx context.Context, tx pgx.Tx, category, source, intent string, amount int64, currency string) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO stripesim.balance_transactions (id, reporting_category, source, payment_intent, amount, currency)
		VALUES ($1, $2, $3, $4, $5, $6)`, balanceID(category, source), category, source, intent, amount, currency)
	return err
}

// balanceTransaction is a row of the table balance_transactions.
type balanceTransaction struct {
	ID                string
	Seq               int64
	ReportingCategory string
	Source            string
	PaymentIntent     string
	Amount            int64
	Currency          string
	CreatedAt         time.Time
}

// balanceType returns the type of a balance transaction. Stripe has adjustments of several categories.
func balanceType(category string) string {
	switch category {
	case "charge", "refund":
		return category
	default:
		return "adjustment"
	}
}

// fields returns the balance transaction as the API answers it, with the amount and the currency of the settlement.
// There are no fees. The source is an id, or an object if the request expands it. See
// https://docs.stripe.com/api/balance_transactions/object.
func (b balanceTransaction) fields(source any) fields {
	amount := b.Amount
	rate, foreign := exchangeRates[b.Currency]
	if foreign {
		amount = int64(float64(amount) * rate)
	}
	all := fields{
		"id":                 b.ID,
		"object":             "balance_transaction",
		"amount":             amount,
		"available_on":       b.CreatedAt.Unix(),
		"balance_type":       "payments",
		"created":            b.CreatedAt.Unix(),
		"currency":           settlementCurrency,
		"description":        nil,
		"exchange_rate":      nil,
		"fee":                0,
		"fee_details":        []any{},
		"net":                amount,
		"reporting_category": b.ReportingCategory,
		"source":             source,
		"status":             "available",
		"type":               balanceType(b.ReportingCategory),
	}
	if foreign {
		all["exchange_rate"] = rate
	}
	return all
}

// listBalanceTransactions is GET /v1/balance_transactions.
func (s *Simulator) listBalanceTransactions(ctx context.Context, tx pgx.Tx, c *call) (any, error) {
	f := c.form
	expand := f.expands("data.source")
	from, until := f.created()
	p := f.page()
	if err := f.end(); err != nil {
		return nil, err
	}
	before, err := position(ctx, tx, "balance_transaction", p.after)
	if err != nil {
		return nil, err
	}
	all, err := readRows[balanceTransaction](ctx, tx, `
		SELECT b.* FROM stripesim.balance_transactions b
			JOIN stripesim.payment_intents p ON p.id = b.payment_intent
			JOIN stripesim.sessions s ON s.id = p.session_id
		WHERE s.account = $1 AND s.livemode = $2 AND b.seq < $3
			AND floor(extract(epoch FROM b.created_at)) >= $4 AND floor(extract(epoch FROM b.created_at)) < $5
		ORDER BY b.seq DESC LIMIT $6`, c.owner.Account, c.owner.Livemode, before, from, until, p.limit+1)
	if err != nil {
		return nil, err
	}
	sources := map[string]fields{}
	if expand {
		if sources, err = readSources(ctx, tx, c.owner, all); err != nil {
			return nil, err
		}
	}
	var objects []fields
	for _, b := range all {
		if object, ok := sources[b.Source]; ok {
			objects = append(objects, b.fields(object))
		} else {
			objects = append(objects, b.fields(b.Source))
		}
	}
	return p.list("/v1/balance_transactions", objects), nil
}

// readSources returns the sources of balance transactions, by id: charges, refunds and disputes.
func readSources(ctx context.Context, tx pgx.Tx, of owner, all []balanceTransaction) (map[string]fields, error) {
	var ids, intents []string
	for _, b := range all {
		ids, intents = append(ids, b.Source), append(intents, b.PaymentIntent)
	}
	charges, err := charges(ctx, tx, of, intents...)
	if err != nil {
		return nil, err
	}
	refunds, err := readRows[refund](ctx, tx, `SELECT * FROM stripesim.refunds WHERE id = ANY ($1)`, ids)
	if err != nil {
		return nil, err
	}
	disputes, err := readRows[dispute](ctx, tx, `SELECT * FROM stripesim.disputes WHERE id = ANY ($1)`, ids)
	sources := map[string]fields{}
	for _, c := range charges {
		sources[chargeOf(c.PaymentIntent)] = c.fields()
	}
	for _, r := range refunds {
		sources[r.ID] = r.fields()
	}
	for _, d := range disputes {
		sources[d.ID] = d.fields()
	}
	return sources, err
}
