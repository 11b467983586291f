package payment

import (
	"context"
	"fmt"
	"net/http"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/rest"
)

// NotUnclaimed is the class of the error about a payment that is kept already, or whose money was returned.
var NotUnclaimed = rest.Class{Code: "not-unclaimed", Status: http.StatusConflict, Title: "Payment is not unclaimed"}

// OpsRoutes adds the operators' API of the books.
func (r *Reconciliation) OpsRoutes(ops gin.IRouter) {
	ops.Match(rest.ReadMethods, "/books", rest.Parameters(), rest.Handle(r.get))
	ops.POST("/books/unclaimed/:intent/keep", rest.Parameters(), rest.Handle(r.keep))
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

// keep is the handler of POST /ops/api/books/unclaimed/{intent}/keep.
func (r *Reconciliation) keep(c *gin.Context) error {
	intent := c.Param("intent")
	if !usableID.MatchString(intent) {
		return rest.MalformedRequest(rest.FieldError{Parameter: "intent", Detail: "must be the id of a payment at the provider"})
	}
	by, err := readDecision(c)
	if err != nil {
		return err
	}
	if err := r.Keep(c.Request.Context(), intent, by.actor, by.note); err != nil {
		return err
	}
	c.Status(http.StatusNoContent)
	return nil
}

// Keep records that an operator keeps the money of an unclaimed payment, because its customer has the goods. Otherwise the
// operator returns the money in the provider's dashboard, and the next report finds that.
func (r *Reconciliation) Keep(ctx context.Context, intent, actor, note string) error {
	found, kept, err := r.store.keepUnclaimed(ctx, intent, actor, note)
	switch {
	case err != nil:
		return rest.OutcomeUnknown(err, "Look at the payment before you repeat the request.")
	case !found:
		return rest.NotFound.Errorf("The provider's books have no unclaimed payment %s.", intent)
	case !kept:
		return NotUnclaimed.Errorf("The payment %s is kept already, or its money was returned.", intent)
	}
	r.log.WarnContext(ctx, "an operator keeps the money of an unclaimed payment", "intent", intent, "actor", actor, "note", note)
	return nil
}

// keepUnclaimed stores that an unclaimed payment is kept, unless it is already, or its money was returned. It reports whether
// there is such a payment, and whether this call keeps it.
func (s *Store) keepUnclaimed(ctx context.Context, intent, actor, note string) (found, kept bool, err error) {
	var row struct{ Found, Kept bool }
	_, err = s.row(ctx, &row, `
		WITH net AS (
			SELECT sum(net_cents) AS cents FROM provider_movements WHERE intent = $1 AND attempt_id IS NULL
		),
		kept AS (
			UPDATE unclaimed_payments SET kept_at = clock_timestamp(), actor = $2, note = $3
			FROM net
			WHERE intent = $1 AND kept_at IS NULL AND net.cents > 0
			RETURNING intent
		)
		SELECT EXISTS (SELECT FROM unclaimed_payments WHERE intent = $1) AS found, EXISTS (SELECT FROM kept) AS kept`,
		intent, actor, note)
	if err != nil {
		return false, false, fmt.Errorf("keep the unclaimed payment %s: %w", intent, err)
	}
	return row.Found, row.Kept, nil
}
