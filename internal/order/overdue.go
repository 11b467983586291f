package order

import (
	"context"

	"github.com/google/uuid"
)

// TimeOut cancels those of the orders that are due, without the help of any queue. It returns how many it cancelled and
// how many other sessions hold, or a product of theirs. Ids that are no order's count as neither. After an error some
// may have been cancelled; [Unavailable] tells whether it is the orders' or the database's.
func (s *Service) TimeOut(ctx context.Context, ids []string) (done, held int, err error) {
	orders := make([]uuid.UUID, 0, len(ids))
	for _, id := range ids {
		if parsed, err := parseID(id); err == nil {
			orders = append(orders, parsed)
		}
	}
	verdicts, err := s.timeOut(ctx, orders, Reconciler, s.store.cancelSoon)
	return count(verdicts, cancelled), count(verdicts, locked) + count(verdicts, blocked), err
}
