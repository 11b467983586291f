package provider

import (
	"context"
	"time"

	"github.com/stripe/stripe-go/v85"
)

// listLimit is the number of rows of a page: the most that Stripe allows.
const listLimit = 100

// Movements implements [Books] with Stripe's balance transactions.
func (p *Stripe) Movements(ctx context.Context, from, to time.Time, after string) (Page[Movement], error) {
	params := &stripe.BalanceTransactionListParams{
		CreatedRange: &stripe.RangeQueryParams{GreaterThanOrEqual: from.Unix(), LesserThan: to.Unix()},
		Expand:       []*string{stripe.String("data.source")},
	}
	params.Limit = stripe.Int64(listLimit)
	if after != "" {
		params.StartingAfter = stripe.String(after)
	}
	list := p.stripe.V1BalanceTransactions.List(ctx, params)
	if err := checkList(opMovements, list); err != nil {
		return Page[Movement]{}, err
	}
	page := Page[Movement]{More: list.Meta().HasMore, Now: p.Clock()}
	for _, b := range list.Data() {
		page.Rows = append(page.Rows, movementOf(b))
	}
	return page, nil
}

// movementKinds are the kinds of the balance transactions that move money of a payment.
var movementKinds = map[stripe.BalanceTransactionReportingCategory]MovementKind{
	stripe.BalanceTransactionReportingCategoryCharge:          Captured,
	stripe.BalanceTransactionReportingCategoryRefund:          Refunded,
	stripe.BalanceTransactionReportingCategoryRefundFailure:   RefundFailed,
	stripe.BalanceTransactionReportingCategoryDispute:         Disputed,
	stripe.BalanceTransactionReportingCategoryDisputeReversal: DisputeReversed,
}

// movementOf reads a balance transaction. The amount and the currency are those of the charge, the refund or the
// dispute: a balance transaction may have been converted to the currency of the account.
func movementOf(b *stripe.BalanceTransaction) Movement {
	m := Movement{ID: b.ID, At: time.Unix(b.Created, 0)}
	if b.Source == nil {
		return m
	}
	m.Source = b.Source.ID
	var intent *stripe.PaymentIntent
	switch charge, refund, dispute := b.Source.Charge, b.Source.Refund, b.Source.Dispute; {
	case charge != nil:
		m.AmountCents, m.Currency, intent = charge.AmountCaptured, string(charge.Currency), charge.PaymentIntent
		m.Owner = ownerOf(charge.Metadata)
	case refund != nil:
		m.AmountCents, m.Currency, intent = refund.Amount, string(refund.Currency), refund.PaymentIntent
		m.Owner, m.Refund = ownerOf(refund.Metadata), refund.Metadata["refund"]
	case dispute != nil:
		m.AmountCents, m.Currency, intent = dispute.Amount, string(dispute.Currency), dispute.PaymentIntent
	}
	if intent != nil { // of a Checkout Session
		m.Intent, m.Kind = intent.ID, movementKinds[b.ReportingCategory]
	}
	return m
}

// OpenSessions implements [Books].
func (p *Stripe) OpenSessions(ctx context.Context, since time.Time, after string) (Page[Session], error) {
	params := &stripe.CheckoutSessionListParams{
		CreatedRange: &stripe.RangeQueryParams{GreaterThanOrEqual: since.Unix()},
		Status:       stripe.String(string(stripe.CheckoutSessionStatusOpen)),
	}
	params.Limit = stripe.Int64(listLimit)
	if after != "" {
		params.StartingAfter = stripe.String(after)
	}
	list := p.stripe.V1CheckoutSessions.List(ctx, params)
	if err := checkList(opSessions, list); err != nil {
		return Page[Session]{}, err
	}
	page := Page[Session]{More: list.Meta().HasMore}
	for _, s := range list.Data() {
		page.Rows = append(page.Rows, Session{
			Owner: ownerOf(s.Metadata), ID: s.ID,
			CreatedAt: time.Unix(s.Created, 0), ExpiresAt: time.Unix(s.ExpiresAt, 0),
		})
	}
	return page, nil
}
