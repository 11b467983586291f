package stripesim

import (
	"context"
	"database/sql"
	"strings"
	"time"
)

// settlementCurrency is the currency of the account's balance. Payments in other currencies are converted.
const settlementCurrency = "eur"

// exchangeRates are the amounts of the settlementCurrency's smallest unit for one smallest unit of other currencies. They
// never change here.
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
func book(ctx context.Context, tx *sql.Tx, category, source, intent string, amount int64, currency string) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO stripesim.balance_transactions (id, reporting_category, source, payment_intent, amount, currency)
		VALUES ($1, $2, $3, $4, $5, $6)`, balanceID(category, source), category, source, intent, amount, currency)
	return err
}

// balanceTransaction is a row of the table balance_transactions.
type balanceTransaction struct {
	id        string
	category  string
	source    string
	intent    string
	amount    int64
	currency  string
	createdAt time.Time
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

// fields returns the balance transaction as the API answers it, with the amount and the currency of the settlement. The
// source is an id, or an object if the request expands it. See https://docs.stripe.com/api/balance_transactions/object.
func (b balanceTransaction) fields(source any) fields {
	amount, fee, feeDetails := b.amount, int64(0), []any{}
	rate, foreign := exchangeRates[b.currency]
	if foreign {
		amount = int64(float64(amount) * rate)
	}
	if b.category == "charge" { // 1.5 % and 25 cents, as for European cards
		fee = amount*15/1000 + 25
		feeDetails = append(feeDetails, fields{
			"amount": fee, "application": nil, "currency": settlementCurrency, "description": "Stripe processing fees",
			"type": "stripe_fee",
		})
	}
	all := fields{
		"id":                 b.id,
		"object":             "balance_transaction",
		"amount":             amount,
		"available_on":       b.createdAt.Unix(),
		"balance_type":       "payments",
		"created":            b.createdAt.Unix(),
		"currency":           settlementCurrency,
		"description":        nil,
		"exchange_rate":      nil,
		"fee":                fee,
		"fee_details":        feeDetails,
		"net":                amount - fee,
		"reporting_category": b.category,
		"source":             source,
		"status":             "available",
		"type":               balanceType(b.category),
	}
	if foreign {
		all["exchange_rate"] = rate
	}
	return all
}

// listBalanceTransactions is GET /v1/balance_transactions.
func (s *Simulator) listBalanceTransactions(ctx context.Context, tx *sql.Tx, c *call) (any, error) {
	f := c.form
	kind := f.optional("type")
	source := f.optional("source")
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
	all, err := readBalance(ctx, tx, `
		SELECT b.id, b.reporting_category, b.source, b.payment_intent, b.amount, b.currency, b.created_at
		FROM stripesim.balance_transactions b
			JOIN stripesim.payment_intents p ON p.id = b.payment_intent JOIN stripesim.sessions s ON s.id = p.session_id
		WHERE s.account = $1 AND s.livemode = $2 AND b.seq < $3 AND ($4 = '' OR b.source = $4)
			AND ($5 = '' OR $5 = CASE WHEN b.reporting_category IN ('charge', 'refund') THEN b.reporting_category ELSE 'adjustment' END)
			AND floor(extract(epoch FROM b.created_at)) >= $6 AND floor(extract(epoch FROM b.created_at)) < $7
		ORDER BY b.seq DESC LIMIT $8`, c.owner.account, c.owner.live, before, source, kind, from, until, p.limit+1)
	if err != nil {
		return nil, err
	}
	sources := map[string]any{}
	if expand {
		if sources, err = s.sources(ctx, tx, c.owner, all); err != nil {
			return nil, err
		}
	}
	var objects []fields
	for _, b := range all {
		if object, ok := sources[b.source]; ok {
			objects = append(objects, b.fields(object))
		} else {
			objects = append(objects, b.fields(b.source))
		}
	}
	return p.list("/v1/balance_transactions", objects), nil
}

func readBalance(ctx context.Context, tx *sql.Tx, query string, args ...any) ([]balanceTransaction, error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []balanceTransaction
	for rows.Next() {
		var b balanceTransaction
		if err := rows.Scan(&b.id, &b.category, &b.source, &b.intent, &b.amount, &b.currency, &b.createdAt); err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, rows.Err()
}

// sources returns the objects of the sources of balance transactions, by id.
func (s *Simulator) sources(ctx context.Context, tx *sql.Tx, of owner, all []balanceTransaction) (map[string]any, error) {
	var intents, refunds, disputes []string
	for _, b := range all {
		switch b.category {
		case "charge":
			intents = append(intents, b.intent)
		case "refund", "refund_failure":
			refunds = append(refunds, b.source)
		default:
			disputes = append(disputes, b.source)
		}
	}
	objects := map[string]any{}
	found, err := charges(ctx, tx, of, intents)
	if err != nil {
		return nil, err
	}
	for intent, c := range found {
		objects[chargeOf(intent)] = c.fields()
	}
	rows, err := tx.QueryContext(ctx, `SELECT `+refundColumns+` FROM stripesim.refunds WHERE id = ANY ($1)`, refunds)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		r, err := scanRefund(rows)
		if err != nil {
			return nil, err
		}
		objects[r.id] = r.fields()
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	for _, id := range disputes {
		d, err := findDispute(ctx, tx, of, id)
		if err != nil {
			return nil, err
		}
		objects[id] = d.fields()
	}
	return objects, nil
}
