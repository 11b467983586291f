package payment

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"example.com/shop/internal/rest"
)

// closeIncident is the handler of POST /ops/api/books/incidents/{id}/close.
func (r *Reconciliation) closeIncident(c *gin.Context) error {
	id, err := rest.PathID(c, "an incident")
	if err != nil {
		return err
	}
	by, err := readDecision(c)
	if err != nil {
		return err
	}
	if err := r.CloseIncident(c.Request.Context(), id, by.actor, by.note); err != nil {
		return err
	}
	c.Status(http.StatusNoContent)
	return nil
}

// CloseIncident records that an operator has looked at an incident. After the last one, refunds are sent again. After one of
// lost sessions, the next run of the books expires the sessions that were lost before. A repeated call changes nothing.
func (r *Reconciliation) CloseIncident(ctx context.Context, id uuid.UUID, actor, note string) error {
	kind, err := r.store.closeIncident(ctx, id, actor, note)
	switch {
	case err != nil:
		return rest.OutcomeUnknown(err, "Repeat the request.")
	case kind == "":
		return rest.NotFound.Errorf("There is no incident %s.", id)
	}
	r.log.WarnContext(ctx, "an operator closed a payment incident", "incident", id, "kind", kind, "actor", actor, "note", note)
	return nil
}
