package order

import (
	"context"
	_ "embed"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/reconcile"
)

var (
	//go:embed book.sql
	bookSQL string
	//go:embed not_booked.sql
	notBookedSQL string
	//go:embed removable.sql
	removableSQL string
	//go:embed remove.sql
	removeSQL string
)

const (
	bookEvery = 5 * time.Second
	// bookTimeout bounds a batch, because it keeps the locks of its orders while its commit waits for a standby.
	bookTimeout = 5 * time.Second
	// staleBooking is the age of an ended order that is not booked, above which the doctor reports it.
	staleBooking = time.Minute
)

// keepBooks books ended orders until ctx ends, and then returns nil: book.sql says what that means. Any number of
// processes may do so, because each skips the orders that another one has locked.
func (s *Service) keepBooks(ctx context.Context) error {
	failed := false // the last run
	return reconcile.Every(ctx, bookEvery, s.log, func(ctx context.Context) {
		n, err := s.store.Book(ctx)
		switch {
		case ctx.Err() != nil: // the process stops
			return
		case err != nil && !failed:
			s.log.WarnContext(ctx, "ended orders could not be booked; each run tries again, "+
				"and the next one that succeeds is logged", "error", err)
		case err == nil && failed:
			s.log.InfoContext(ctx, "ended orders are booked again", "orders", n)
		}
		failed = err != nil
	})
}

// Book books all ended orders that are not booked, in batches, and returns their number. It leaves orders that another
// session has locked to the next run. An error ends the run; the batches before it are booked.
func (s *Store) Book(ctx context.Context) (booked int64, err error) {
	for after := (uuid.UUID{}); ; {
		var batch struct {
			Orders int64
			Last   *uuid.UUID // nil: there is no order to book
		}
		ctx, cancel := context.WithTimeout(ctx, bookTimeout)
		_, err := postgres.Scan(ctx, s.db, &batch, bookSQL, after)
		cancel()
		switch {
		case err != nil:
			return booked, fmt.Errorf("book ended orders: %w", err)
		case batch.Last == nil:
			return booked, nil
		}
		booked += batch.Orders
		after = *batch.Last
	}
}

// notBooked counts the ended orders that are not booked, at most 100,000, and returns the time since the first of them
// ended.
func (s *Store) notBooked(ctx context.Context) (orders int64, oldest time.Duration, err error) {
	var seconds float64
	if err := s.db.WithContext(ctx).Raw(notBookedSQL).Row().Scan(&orders, &seconds); err != nil {
		return 0, 0, fmt.Errorf("count the orders that are not booked: %w", err)
	}
	return orders, time.Duration(seconds * float64(time.Second)), nil
}

// checkBooking is the check of `doctor` that looks for orders that no booker has booked.
func (s *Store) checkBooking(ctx context.Context) error {
	n, oldest, err := s.notBooked(ctx)
	if oldest > staleBooking {
		err = fmt.Errorf("%d ended orders are not booked, the oldest ended %v ago: is a reconciler running?",
			n, oldest.Round(time.Second))
	}
	return err
}

// newBookingGauge returns the gauge of the oldest order that is not booked, which asks the database at each scrape.
// Its value is NaN if the database does not answer within a second.
func newBookingGauge(s *Store) prometheus.GaugeFunc {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "orders_not_booked_oldest_seconds",
		Help: "Time since the end of the oldest order that is not booked, in seconds; 0 if there is none.",
	}, func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, oldest, err := s.notBooked(ctx)
		if err != nil {
			return math.NaN()
		}
		return oldest.Seconds()
	})
}

const (
	// removeEvery is the longest time between two runs: they are more frequent if orders are kept for a shorter time.
	removeEvery   = time.Minute
	removeTimeout = 10 * time.Second // bounds a batch
	// removeRest is the pause after a batch, as a multiple of the time that it took. It leaves time for placements.
	removeRest = 2
)

// Dependent is another package whose rows refer to orders.
type Dependent interface {
	// Owed locks the rows that refer to the ended orders ids until the transaction ends. It returns the orders that
	// must stay, because the package still owes something for them, for instance a refund.
	Owed(tx *gorm.DB, ids []uuid.UUID) ([]uuid.UUID, error)
	// Remove removes the rows that refer to the orders ids, which Owed of no package has returned.
	Remove(tx *gorm.DB, ids []uuid.UUID) error
	// OrderOf returns the order to which the row with this id refers. found is false if the package has no such row.
	OrderOf(db *gorm.DB, id string) (order uuid.UUID, found bool, err error)
}

// keepRemoving removes old orders until ctx ends, and then returns nil. Any number of processes may do so: each skips
// the orders that another one has locked.
func (s *Service) keepRemoving(ctx context.Context) error {
	s.metrics.lastRemoval.SetToCurrentTime()
	return reconcile.Every(ctx, min(removeEvery, s.cfg.Keep), s.log, func(ctx context.Context) {
		n, err := s.RemoveOld(ctx, s.cfg.Keep)
		switch {
		case ctx.Err() != nil: // the process stops
		case err != nil:
			s.log.WarnContext(ctx, "old orders could not be removed; the next run tries again",
				"removed", n, "error", err)
		case n > 0:
			s.log.InfoContext(ctx, "old orders were removed", "orders", n)
		}
	})
}

// RemoveOld removes all booked orders that ended longer ago than keep, in batches, and returns their number. It leaves
// orders that another session has locked to the next run. An error ends the run; the batches before it are removed.
// RemoveOld pauses after each batch.
func (s *Service) RemoveOld(ctx context.Context, keep time.Duration) (removed int64, err error) {
	for after := (uuid.UUID{}); ; {
		began := time.Now()
		batch, n, err := s.removeBatch(ctx, keep, after)
		removed += n
		s.metrics.removed.Add(float64(n))
		if err != nil {
			return removed, err
		}
		if len(batch) == 0 {
			s.metrics.lastRemoval.SetToCurrentTime()
			return removed, nil
		}
		after = batch[len(batch)-1]
		select {
		case <-time.After(removeRest * time.Since(began)):
		case <-ctx.Done():
			return removed, ctx.Err()
		}
	}
}

// removeBatch removes the next batch of the orders that ended longer ago than keep, except the orders that a dependent
// returns from Owed. It returns all orders of the batch, and the number of removed orders. after is the last order of
// the batch before.
func (s *Service) removeBatch(
	ctx context.Context, keep time.Duration, after uuid.UUID,
) (batch []uuid.UUID, removed int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	err = s.store.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		err := tx.Raw(removableSQL+" FOR UPDATE SKIP LOCKED", after, keep.Microseconds()).Scan(&batch).Error
		if err != nil || len(batch) == 0 {
			return err
		}
		free := slices.Clone(batch)
		for _, d := range s.cfg.Dependents {
			owed, err := d.Owed(tx, batch)
			if err != nil {
				return err
			}
			free = slices.DeleteFunc(free, func(id uuid.UUID) bool { return slices.Contains(owed, id) })
		}
		for _, d := range s.cfg.Dependents {
			if err := d.Remove(tx, free); err != nil {
				return err
			}
		}
		return tx.Raw(removeSQL, free).Scan(&removed).Error
	})
	if err != nil {
		return nil, 0, fmt.Errorf("remove orders: %w", err)
	}
	return batch, removed, nil
}
