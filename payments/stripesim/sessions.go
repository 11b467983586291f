package stripesim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// The limits of a session. See https://docs.stripe.com/api/checkout/sessions/create.
const (
	minSessionLife = 30 * time.Minute
	maxSessionLife = 24 * time.Hour
	maxAmount      = 99_999_999 // in the smallest unit of the currency
)

// currency is a currency of the simulator. See https://docs.stripe.com/currencies.
type currency struct {
	decimals int
	min      int64 // the smallest amount of a session, in the currency's smallest unit
}

// currencies are the currencies of the simulator. The table is the provider's and not the shop's, because Stripe's
// units are not those of ISO 4217 for some currencies, such as ISK. Stripe names no smallest amount of KWD: it must be
// worth that of the currency of settlement.
var currencies = map[string]currency{
	"eur": {2, 50},
	"usd": {2, 50},
	"gbp": {2, 30},
	"chf": {2, 50},
	"jpy": {0, 50},
	"kwd": {3, 170},
}

// session is a row of the table sessions.
type session struct {
	owner
	Seq               int64
	ID                string
	Status            string
	ClientReferenceID *string
	AmountTotal       int64
	Currency          string
	Item              string // the name of the only line item
	Metadata          map[string]string
	PaymentMetadata   map[string]string
	AdaptivePricing   bool
	SuccessURL        string
	CancelURL         *string
	CreatedAt         time.Time
	ExpiresAt         time.Time
	BankPaysAt        *time.Time
	PaymentIntent     *string
	Unpaid            bool
	ExpiredByAPI      bool
}

// object returns a session as the API answers it. An open session has the address of its checkout page. See
// https://docs.stripe.com/api/checkout/sessions/object.
func (s *Simulator) object(row session) fields {
	all := fields{
		"id":                  row.ID,
		"object":              "checkout.session",
		"adaptive_pricing":    fields{"enabled": row.AdaptivePricing},
		"amount_subtotal":     row.AmountTotal,
		"amount_total":        row.AmountTotal,
		"automatic_tax":       fields{"enabled": false, "liability": nil, "status": nil},
		"cancel_url":          row.CancelURL,
		"client_reference_id": row.ClientReferenceID,
		"created":             row.CreatedAt.Unix(),
		"currency":            row.Currency,
		"custom_fields":       []any{},
		"custom_text": fields{
			"after_submit": nil, "shipping_address": nil, "submit": nil, "terms_of_service_acceptance": nil,
		},
		"customer":             nil,
		"customer_creation":    "if_required",
		"expires_at":           row.ExpiresAt.Unix(),
		"livemode":             row.Livemode,
		"metadata":             row.Metadata,
		"mode":                 "payment",
		"payment_intent":       row.PaymentIntent,
		"payment_method_types": []string{"card"},
		"payment_status":       "unpaid",
		"shipping_options":     []any{},
		"status":               row.Status,
		"success_url":          row.SuccessURL,
		"total_details":        fields{"amount_discount": 0, "amount_shipping": 0, "amount_tax": 0},
		"ui_mode":              "hosted_page",
		"url":                  nil,
	}
	if row.PaymentIntent != nil && !row.Unpaid {
		all["payment_status"] = "paid"
	}
	if row.Status == "open" {
		all["url"] = strings.TrimSuffix(s.cfg.PublicURL, "/") + "/checkout/" + row.ID
	}
	return all
}

// listSessions is GET /v1/checkout/sessions.
func (s *Simulator) listSessions(ctx context.Context, tx pgx.Tx, c *call) (any, error) {
	f := c.form
	status := f.oneOf("status", "open", "complete", "expired")
	from, until := f.created()
	p := f.page()
	if err := f.end(); err != nil {
		return nil, err
	}
	before, err := position(ctx, tx, "checkout.session", p.after)
	if err != nil {
		return nil, err
	}
	rows, err := readRows[session](ctx, tx, `
		SELECT * FROM stripesim.sessions
		WHERE account = $1 AND livemode = $2 AND ($3 = '' OR status = $3) AND seq < $4
			AND floor(extract(epoch FROM created_at)) >= $5 AND floor(extract(epoch FROM created_at)) < $6
		ORDER BY seq DESC LIMIT $7`, c.owner.Account, c.owner.Livemode, status, before, from, until, p.limit+1)
	var objects []fields
	for _, row := range rows {
		objects = append(objects, s.object(row))
	}
	return p.list("/v1/checkout/sessions", objects), err
}

// createSession is POST /v1/checkout/sessions.
func (s *Simulator) createSession(ctx context.Context, tx pgx.Tx, c *call) (any, error) {
	if s.knobs.get().Sessions == "refuse" {
		return nil, invalidRequest("", "", "Your account cannot currently make charges (the knob sessions is refuse).")
	}
	var now time.Time // the database's clock decides when a session expires
	if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return nil, err
	}
	row, err := readSession(c.form, now)
	if err != nil {
		return nil, err
	}
	row, err = readRow[session](ctx, tx, `
		INSERT INTO stripesim.sessions (id, client_reference_id, amount_total, currency, item, metadata,
			adaptive_pricing, success_url, cancel_url, created_at, expires_at, account, livemode, payment_metadata)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) RETURNING *`,
		newID("cs_"+c.owner.mode()+"_"), row.ClientReferenceID, row.AmountTotal, row.Currency, row.Item, row.Metadata,
		row.AdaptivePricing, row.SuccessURL, row.CancelURL, now, row.ExpiresAt, c.owner.Account, c.owner.Livemode,
		row.PaymentMetadata)
	if err != nil {
		return nil, err
	}
	return s.object(row), nil
}

// readSession returns the session that the parameters describe.
func readSession(f *form, now time.Time) (session, error) {
	var s session
	if mode := f.required("mode"); mode != "payment" {
		f.reject("", "mode", "Invalid mode: the simulator supports only payment")
	}
	s.Item, s.Currency, s.AmountTotal = readLineItem(f)
	f.require("success_url")
	s.SuccessURL = f.url("success_url")
	s.CancelURL = optionalText(f.url("cancel_url"))
	s.ClientReferenceID = optionalText(f.optional("client_reference_id"))
	if s.ClientReferenceID != nil && utf8.RuneCountInString(*s.ClientReferenceID) > 200 {
		f.reject("", "client_reference_id", "Invalid string: must be at most 200 characters")
	}
	s.Metadata = f.metadata("metadata")
	s.PaymentMetadata = f.metadata("payment_intent_data[metadata]")
	s.AdaptivePricing = f.boolean("adaptive_pricing[enabled]")
	for i := range f.length("payment_method_types") {
		f.oneOf(fmt.Sprintf("payment_method_types[%d]", i), "card")
	}
	s.ExpiresAt = readExpiry(f, now)
	return s, f.end()
}

func readExpiry(f *form, now time.Time) time.Time {
	const year9999 = 253_402_300_799
	seconds := f.integer("expires_at", now.Add(maxSessionLife).Unix(), 0, year9999)
	// Stripe counts in whole seconds.
	switch life := seconds - now.Unix(); {
	case life < int64(minSessionLife.Seconds()):
		f.reject("", "expires_at",
			"The `expires_at` timestamp must be at least 30 minutes from Checkout Session creation.")
	case life > int64(maxSessionLife.Seconds()):
		f.reject("", "expires_at",
			"The `expires_at` timestamp must be less than 24 hours from Checkout Session creation.")
	}
	return time.Unix(seconds, 0)
}

// readLineItem returns the name and the currency of the only line item, and the total amount in the currency's smallest
// unit.
func readLineItem(f *form) (name, code string, total int64) {
	const (
		price      = "line_items[0][price_data]"
		unitAmount = price + "[unit_amount]"
		quantity   = "line_items[0][quantity]"
	)
	if n := f.length("line_items"); n != 1 {
		f.reject("", "line_items", "There are %d line items. The simulator supports only one.", n)
	}
	f.require(unitAmount)
	f.require(quantity)
	name, code = f.required(price+"[product_data][name]"), f.required(price+"[currency]")
	amount := f.integer(unitAmount, 0, 0, maxAmount)
	total = amount * f.integer(quantity, 0, 1, 999_999)
	limits := currencies[code]
	switch {
	case limits == currency{}:
		f.reject("", price+"[currency]", "Invalid currency: %s. The simulator supports %s.",
			code, strings.Join(slices.Sorted(maps.Keys(currencies)), ", "))
	case limits.decimals == 3 && amount%10 != 0:
		f.reject("", unitAmount, "The last digit of an amount with three decimals must be 0.")
	case total < limits.min:
		f.reject("amount_too_small", "",
			"The Checkout Session's total amount due must add up to at least %s.", money(limits.min, code))
	case total > maxAmount:
		f.reject("amount_too_large", "",
			"The Checkout Session's total amount due must be no more than %s.", money(maxAmount, code))
	}
	return name, code, total
}

// optionalText returns nil for a text that is absent.
func optionalText(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// money returns an amount of the smallest unit of a currency as text: "12.34 EUR", "40 JPY".
func money(n int64, code string) string {
	decimals := currencies[code].decimals
	digits := fmt.Sprintf("%0*d", decimals+1, n)
	text := digits[:len(digits)-decimals]
	if decimals > 0 {
		text += "." + digits[len(digits)-decimals:]
	}
	return text + " " + strings.ToUpper(code)
}

// retrieveSession is GET /v1/checkout/sessions/{id}.
func (s *Simulator) retrieveSession(ctx context.Context, tx pgx.Tx, c *call) (any, error) {
	if err := c.form.end(); err != nil {
		return nil, err
	}
	row, err := findSession(ctx, tx, c.id, &c.owner)
	if err != nil {
		return nil, err
	}
	return s.object(row), nil
}

// expireSession is POST /v1/checkout/sessions/{id}/expire.
func (s *Simulator) expireSession(ctx context.Context, tx pgx.Tx, c *call) (any, error) {
	if err := c.form.end(); err != nil {
		return nil, err
	}
	row, err := findSession(ctx, tx, c.id, &c.owner)
	if err != nil {
		return nil, err
	}
	ended, err := s.endSession(ctx, tx, c.id, c, `TRUE`)
	if errors.Is(err, pgx.ErrNoRows) {
		// The session is read again, because it may have ended between the first two statements.
		if row, err = findSession(ctx, tx, c.id, &c.owner); err == nil {
			err = rejectedByState("", "", "Only Checkout Sessions with a status in [\"open\"] can be expired. "+
				"This Checkout Session has a status of `"+row.Status+"`.")
		}
	}
	if err != nil {
		return nil, err
	}
	return s.object(ended), nil
}

// endSession changes an open session to expired, if it meets the condition, and records the event. c is the call that
// expires it, or nil if its time is over. The error is [pgx.ErrNoRows] if there is no such session.
func (s *Simulator) endSession(ctx context.Context, tx pgx.Tx, id string, c *call, condition string) (session, error) {
	row, err := readRow[session](ctx, tx, `
		UPDATE stripesim.sessions SET status = 'expired', expired_by_api = $2
		WHERE id = $1 AND status = 'open' AND `+condition+` RETURNING *`, id, c != nil)
	if err != nil {
		return session{}, err
	}
	return row, s.record(ctx, tx, "checkout.session.expired", row.owner, s.object(row), c)
}

// overdue is the condition of sessions whose time is over.
const overdue = `expires_at <= clock_timestamp()`

// findSession returns a session. The error is an [apiError] if the owner has no such session. The owner nil stands for
// all owners.
func findSession(ctx context.Context, db database, id string, of *owner) (session, error) {
	row, err := readRow[session](ctx, db, `SELECT * FROM stripesim.sessions WHERE id = $1`, id)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && of != nil && row.owner != *of {
		return session{}, missing("checkout.session", id, "session")
	}
	return row, err
}

// expireSessions expires the sessions that are overdue.
func (s *Simulator) expireSessions(ctx context.Context) error {
	return s.forEach(ctx, `
		SELECT id FROM stripesim.sessions WHERE status = 'open' AND `+overdue+` ORDER BY expires_at LIMIT 1000`,
		func(tx pgx.Tx, id string) error {
			_, err := s.endSession(ctx, tx, id, nil, overdue)
			return err
		})
}
