package payment

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"example.com/shop/internal/rest"
)

// decision is what an operator decided about money, and who it was. The operators' token names nobody.
type decision struct{ actor, note string }

// maxDecision is the largest length of an actor and of a note, in characters. With a smaller one, an operator could not
// explain a case; with a larger one, the list of cases would be hard to read.
const maxDecision = 200

// readDecision reads the body of a request: the fields actor and note.
func readDecision(c *gin.Context) (by decision, err error) {
	body, err := rest.ReadObject(c)
	if err != nil {
		return decision{}, err
	}
	errs := body.UnknownFields("", "actor", "note")
	text := func(name string) string {
		s, wrong := body.Text(name, maxDecision)
		errs = append(errs, wrong...)
		return s
	}
	by = decision{actor: text("actor"), note: text("note")}
	if len(errs) > 0 {
		return decision{}, rest.InvalidFields(errs...)
	}
	rest.AddLogAttr(c, slog.String("actor", by.actor))
	return by, nil
}

// settleOutside is the handler of POST /ops/api/refunds/{id}/settled-outside.
func (a *api) settleOutside(c *gin.Context) error {
	id, err := rest.PathID(c, "a refund")
	if err != nil {
		return err
	}
	by, err := readDecision(c)
	if err != nil {
		return err
	}
	if err := a.payments.SettleOutside(c.Request.Context(), id, by.actor, by.note); err != nil {
		return err
	}
	c.Status(http.StatusNoContent)
	return nil
}

// SettleOutside records that an operator has settled a failed refund outside of the provider, for example by a transfer.
// Nothing moves the refund after that.
func (s *Service) SettleOutside(ctx context.Context, id uuid.UUID, actor, note string) error {
	row, err := s.store.settleOutside(ctx, id, note, actor)
	switch {
	case err != nil:
		return rest.OutcomeUnknown(err, "Look at the state of the refund.")
	case !row.Found:
		return rest.NotFound.Errorf("There is no refund %s.", id)
	case !row.Settled:
		return NotFailed.Errorf("The refund %s has not failed. Only a refund that failed can be settled outside of the payment provider.", id)
	}
	s.log.WarnContext(ctx, "a failed refund was settled outside of the payment provider",
		"refund", id, "order_id", row.OrderID, "actor", actor, "note", note)
	s.metrics.refunds.WithLabelValues(string(SettledOutside)).Inc()
	s.notify.Notify(row.CustomerID.String(), row.OrderID.String())
	return nil
}
