// Package closesale lets operators close the sale of a product: it brings the deadlines of the product's orders forward.
package closesale

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"example.com/shop/internal/rest"
)

// Orders are the orders whose deadlines are brought forward.
type Orders interface {
	// TaskKinds returns the kinds of the tasks to owe when a deadline moves: of the task that cancels the order, and of
	// the task that ends its hold, "" for none.
	TaskKinds() (cancel, hold string)
	// Notify tells the pages of a customer that an order has changed.
	Notify(customer, order string)
}

// Service closes the sales of products.
type Service struct {
	store     *Store
	orders    Orders
	forwarded prometheus.Counter
}

// NewService returns a service for the orders of a store.
func NewService(store *Store, orders Orders, reg prometheus.Registerer) *Service {
	return &Service{
		store: store, orders: orders,
		forwarded: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "orders_brought_forward_total",
			Help: "Orders whose deadline an operator brought forward.",
		}),
	}
}

// Closed is the result of [Service.CloseSale].
type Closed struct {
	Orders   int64     `json:"orders"`   // orders whose deadline was brought forward
	Deadline time.Time `json:"deadline"` // the latest of the new deadlines
}

// CloseSale brings the deadlines of a product's pending orders that are later than a minute from now forward to a minute
// from now. If such an order is held, the time from the end of its checkout to the end of its hold stays the same. CloseSale
// works page by page: after an error some of the deadlines are moved. It is idempotent. It does not move orders that are placed
// after its start.
//
// The tasks are in the outbox, and only the relay publishes them, because they are not due for another minute.
func (s *Service) CloseSale(ctx context.Context, product uuid.UUID) (Closed, error) {
	found, err := s.store.hasProduct(ctx, product)
	switch {
	case err != nil:
		return Closed{}, err
	case !found:
		return Closed{}, rest.NotFound.Errorf("There is no product %s.", product)
	}
	cancelKind, holdKind := s.orders.TaskKinds()
	closed, err := s.store.closeSale(ctx, product, cancelKind, holdKind, func(moved []movedOrder) {
		s.forwarded.Add(float64(len(moved)))
		for _, o := range moved {
			s.orders.Notify(o.CustomerID.String(), o.ID.String())
		}
	})
	return closed, rest.OutcomeUnknown(err, "Repeat the request: it moves the deadlines that are not moved yet.")
}
