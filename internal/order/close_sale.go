package order

import (
	"context"
	_ "embed"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"example.com/shop/internal/rest"
)

//go:embed close_sale.openapi.yaml
var closeSaleContract []byte

// SaleClosed is the result of [Service.CloseSale].
type SaleClosed struct {
	Orders   int64     `json:"orders"`   // orders whose deadline was brought forward
	Deadline time.Time `json:"deadline"` // by then all of them must be paid
}

// CloseSale brings the deadlines of a product's pending orders that are later than a minute from now forward to a minute
// from now. If such an order is held, its hold ends earlier by the same time. CloseSale works page by page: after an
// error some of the deadlines are moved. It is idempotent. It does not move orders that are placed after its start.
//
// The tasks are in the outbox, and only the relay publishes them, because they are not due for another minute.
func (s *Service) CloseSale(ctx context.Context, product uuid.UUID) (SaleClosed, error) {
	found, err := s.store.hasProduct(ctx, product)
	switch {
	case err != nil:
		return SaleClosed{}, err
	case !found:
		return SaleClosed{}, rest.NotFound.Errorf("There is no product %s.", product)
	}
	closed, err := s.store.closeSale(ctx, product, s.holdKind, func(moved []movedOrder) {
		s.metrics.forwarded.Add(float64(len(moved)))
		for _, o := range moved {
			s.Notify(o.CustomerID.String(), o.ID.String())
		}
	})
	return closed, rest.OutcomeUnknown(err, "Repeat the request: it moves the deadlines that are not moved yet.")
}

// answerCloseSale is the handler of POST /ops/api/products/{id}/close-sale. It reads all pending orders, as a sweep may do.
func (s *Service) answerCloseSale(c *gin.Context) error {
	product, err := rest.PathID(c, "a product")
	if err != nil {
		return err
	}
	ctx, cancel, err := rest.ExtendDeadline(c, rest.LongRequest)
	if err != nil {
		return err
	}
	defer cancel()
	closed, err := s.CloseSale(ctx, product)
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, closed)
	return nil
}
