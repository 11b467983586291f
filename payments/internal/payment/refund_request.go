package payment

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/rest"
)

// The classes of error of refunds that operators ask for.
var (
	NotApplied   = rest.Class{Code: "not-applied", Status: http.StatusConflict, Title: "Order not paid at the payment provider"}
	MoreThanPaid = rest.Class{Code: "more-than-paid", Status: http.StatusConflict, Title: "More than is left of the payment"}
	IsDisputed   = rest.Class{Code: "payment-disputed", Status: http.StatusConflict, Title: "Payment disputed"}
)

// RefundRequest is what an operator asks for: to refund a paid order, in full or in part. A repeated request with the
// same key has no further effect.
type RefundRequest struct {
	Key         string
	AmountCents int64
	Currency    string // "": that of the payment
	Actor, Note string
}

// RequestedRefund is a refund that an operator asked for.
type RequestedRefund struct {
	ID          uuid.UUID   `json:"id"`
	OrderID     uuid.UUID   `json:"order_id"`
	State       RefundState `json:"state"`
	AmountCents int64       `json:"amount_cents"`
	Currency    string      `json:"currency"`
	Actor       string      `json:"actor"`
	Note        string      `json:"note"`
	CreatedAt   time.Time   `json:"created_at"`
	EndedAt     *time.Time  `json:"ended_at,omitempty"`
}

// requestRefund is the handler of POST /ops/api/orders/{id}/refunds.
func (a *api) requestRefund(c *gin.Context) error {
	id, err := readOrderID(c)
	if err != nil {
		return err
	}
	request, err := readRefundRequest(c)
	if err != nil {
		return err
	}
	rest.AddLogAttr(c, slog.String("actor", request.Actor))
	refund, isNew, err := a.payments.RequestRefund(c.Request.Context(), id, request)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if isNew {
		status = http.StatusCreated
	}
	c.JSON(status, refund)
	return nil
}

func readRefundRequest(c *gin.Context) (r RefundRequest, err error) {
	r.Key, err = rest.IdempotencyKey(c)
	if err != nil {
		return r, err
	}
	if r.Key == "" {
		return r, rest.MalformedRequest(rest.FieldError{Parameter: "Idempotency-Key", Detail: "is required, so that a repeated request refunds once"})
	}
	body, err := rest.ReadObject(c)
	if err != nil {
		return r, err
	}
	by, errs := readDecision(body, "amount_cents", "currency")
	r.Actor, r.Note = by.actor, by.note
	var isInteger bool
	if r.AmountCents, isInteger = rest.Integer(body["amount_cents"]); !isInteger || r.AmountCents < 1 {
		errs = append(errs, rest.FieldError{Pointer: "/amount_cents", Detail: "must be an integer, at least 1"})
	}
	if value, ok := body["currency"]; ok {
		if r.Currency, _ = value.(string); r.Currency == "" {
			errs = append(errs, rest.FieldError{Pointer: "/currency", Detail: "must be a currency, such as EUR"})
		}
	}
	if len(errs) > 0 {
		return r, rest.InvalidFields(errs...)
	}
	return r, nil
}

// otherCurrency returns the error of an amount that is not in the currency of the payment.
func otherCurrency(orderID uuid.UUID, got, want string) error {
	err := rest.Invalid.Errorf("The payment of order %s is in %s, not in %s.", orderID, want, got)
	err.Fields = []rest.FieldError{{Pointer: "/currency", Detail: "must be " + want}}
	return err
}

// RequestRefund owes a refund of a paid order, in full or in part. It changes neither the order nor the stock. isNew is
// false if an earlier request with the same key has owed it.
func (s *Service) RequestRefund(ctx context.Context, orderID uuid.UUID, r RefundRequest) (refund *RequestedRefund, isNew bool, err error) {
	id := keyset.NewID()
	found, row, err := s.store.requestRefund(ctx, id, orderID, r)
	switch {
	case err != nil:
		return nil, false, rest.OutcomeUnknown(err, "Repeat the request with the same Idempotency-Key: the money is refunded once.")
	case !found:
		return nil, false, rest.NotFound.Errorf("There is no order %s.", orderID)
	case row == nil:
		return nil, false, NotApplied.Errorf("The order %s was not paid at the payment provider.", orderID)
	case r.Currency != "" && r.Currency != row.Currency:
		return nil, false, otherCurrency(orderID, r.Currency, row.Currency)
	case row.ID == nil && row.DisputedCents > 0:
		return nil, false, IsDisputed.Errorf("The customer disputes the payment of order %s, or has won the dispute. It can be refunded if the shop wins.", orderID)
	case row.ID == nil:
		return nil, false, MoreThanPaid.Errorf("Of the payment of order %s, %s are left to refund, not %s.",
			orderID, Amount(row.LeftCents, row.Currency), Amount(r.AmountCents, row.Currency))
	case row.AmountCents != r.AmountCents:
		return nil, false, rest.KeyReused.Errorf(
			"A request with this Idempotency-Key has refunded %s, not %s. Use a new key for another refund.",
			Amount(row.AmountCents, row.Currency), Amount(r.AmountCents, row.Currency))
	}
	refund = &RequestedRefund{
		ID: *row.ID, OrderID: orderID, State: row.State, AmountCents: row.AmountCents, Currency: row.Currency,
		Actor: row.Actor, Note: row.Note, CreatedAt: row.CreatedAt, EndedAt: row.EndedAt,
	}
	if refund.ID != id {
		return refund, false, nil
	}
	s.log.InfoContext(ctx, "an operator refunds a paid order",
		"refund", id, "order_id", orderID, "amount_cents", r.AmountCents, "actor", r.Actor, "note", r.Note)
	s.metrics.refunds.WithLabelValues(string(Owed)).Inc()
	s.metrics.owed.WithLabelValues(string(Requested)).Inc()
	s.notify.Notify(row.CustomerID.String(), orderID.String())
	s.publish.Refund.Publish(ctx, delay.At(id.String(), row.DueAt, row.ServerTime))
	return refund, true, nil
}
