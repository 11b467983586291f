package payment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/rest"
)

// The classes of error of operations on unclaimed payments.
var (
	NotUnclaimed = rest.Class{Code: "not-unclaimed", Status: http.StatusConflict, Title: "Payment is not unclaimed"}
	IncidentOpen = rest.Class{Code: "incident-open", Status: http.StatusConflict, Title: "Payment incident is open"}
)

// OpsRoutes adds the operators' API of the books.
func (r *Reconciliation) OpsRoutes(ops gin.IRouter) {
	ops.Match(rest.ReadMethods, "/books", rest.Parameters(), rest.Handle(r.get))
	ops.POST("/books/unclaimed/:intent/refund", rest.Parameters(), rest.Handle(func(c *gin.Context) error { return r.decide(c, false) }))
	ops.POST("/books/unclaimed/:intent/keep", rest.Parameters(), rest.Handle(func(c *gin.Context) error { return r.decide(c, true) }))
	ops.POST("/books/incidents/:id/close", rest.Parameters(), rest.Handle(r.closeIncident))
}

func (r *Reconciliation) get(c *gin.Context) error {
	list, err := r.store.booksList(c.Request.Context())
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, list)
	return nil
}

// decide is the handler of the two decisions about an unclaimed payment.
func (r *Reconciliation) decide(c *gin.Context, keep bool) error {
	intent := c.Param("intent")
	if !usableID.MatchString(intent) {
		return rest.MalformedRequest(rest.FieldError{Parameter: "intent", Detail: "must be the id of a payment at the provider"})
	}
	by, err := readDecision(c)
	if err != nil {
		return err
	}
	if err := r.Decide(c.Request.Context(), intent, keep, by.actor, by.note); err != nil {
		return err
	}
	c.Status(http.StatusNoContent)
	return nil
}

// Decide returns the money of an unclaimed payment to its customer, or keeps it, because the customer has the goods. A
// repeated call after an error returns the money once.
func (r *Reconciliation) Decide(ctx context.Context, intent string, keep bool, actor, note string) error {
	row, err := r.store.decideUnclaimed(ctx, intent, keep, note, actor)
	switch {
	case err != nil:
		return rest.OutcomeUnknown(err, "Repeat the request.")
	case row.State == "":
		return rest.NotFound.Errorf("The provider's books have no unclaimed payment %s.", intent)
	case row.Incident:
		return IncidentOpen.Errorf("Look at the open incidents, and close them. No money is moved before.")
	case !row.Decided:
		return NotUnclaimed.Errorf("The payment %s is %s, or its money was returned already.", intent, row.State)
	}
	r.log.WarnContext(ctx, "an operator decided about an unclaimed payment", "intent", intent, "keep", keep, "actor", actor, "note", note)
	if keep {
		return nil
	}
	return r.refundUnclaimed(ctx, intent, row)
}

// refundUnclaimed returns the money of a payment, unless the provider has returned it since the books were read. d has the
// amount of the first decision, and what the books knew to be returned before.
func (r *Reconciliation) refundUnclaimed(ctx context.Context, intent string, d unclaimedDecision) error {
	known, err := r.provider.Refunds(ctx, intent)
	if err != nil {
		return unclaimedFailure(err)
	}
	made := -d.ReturnedCents
	var id string // of the latest refund
	for _, k := range known {
		if k.State != Failed {
			made, id = made+k.AmountCents, cmp.Or(id, k.ID)
		}
	}
	switch {
	case made > 0 && made < d.AmountCents:
		if err := r.store.reopenUnclaimed(ctx, intent, d.Try); err != nil {
			return rest.OutcomeUnknown(err, "Repeat the request.")
		}
		return NotUnclaimed.Errorf("The provider has returned a part of the payment %s meanwhile. Wait for the next report, then decide again.", intent)
	case made <= 0:
		sent, err := r.provider.Refund(ctx, Return{Intent: intent, AmountCents: d.AmountCents, Key: fmt.Sprintf("unclaimed-%s-%d", intent, d.Try)})
		if isClass(err, Refused, Missing, Replayed) || causeIs(err, LowBalance) { // the provider repeats this answer to the key
			err = errors.Join(err, r.store.reopenUnclaimed(ctx, intent, d.Try))
		}
		if err != nil {
			return unclaimedFailure(err)
		}
		id = sent.ID
	}
	if err := r.store.endUnclaimed(ctx, intent, id); err != nil {
		return rest.OutcomeUnknown(err, "Repeat the request: the money is returned once.")
	}
	r.log.WarnContext(ctx, "the money of an unclaimed payment is returned", "intent", intent, "refund", id, "amount_cents", d.AmountCents)
	return nil
}

// unclaimedFailure returns the error for a call to the provider that failed.
func unclaimedFailure(err error) error {
	failure := &rest.Error{Class: ProviderAway, Err: err}
	switch {
	case isClass(err, Refused, Missing):
		failure.Class = NotUnclaimed
		failure.Detail = "The payment provider refuses to return the money, for example because of a dispute. The log has its answer."
	case isClass(err, Blocked):
		failure.Class, failure.Detail = PaymentsBlocked, "This process may not refund. The log has the reason. Nothing was returned."
	case isClass(err, Denied):
		failure.Detail = "The payment provider does not accept the key, or the key may not refund. Correct it, then repeat the request."
	case causeIs(err, LowBalance):
		failure.Detail = "The balance at the payment provider is too low. Nothing was returned. Repeat the request when it is higher."
	case isClass(err, Replayed):
		failure.Detail = "The payment provider has failed. Repeat the request: the money is returned once."
	default:
		failure.Detail = "The payment provider does not answer. Repeat the request: the money is returned once."
	}
	return failure
}
