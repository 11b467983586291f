package order

import (
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
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

// keepBooks books ended orders until ctx ends, and then returns nil. Any number of processes may do so: each skips the
// orders that another one has locked.
func (s *Store) keepBooks(ctx context.Context, log *slog.Logger) error {
	failed := false // the last run
	return reconcile.Every(ctx, bookEvery, log, func(ctx context.Context) {
		n, err := s.Book(ctx)
		switch {
		case ctx.Err() != nil: // the process stops
			return
		case err != nil && !failed:
			log.WarnContext(ctx, "ended orders could not be booked; each run tries again, and the next one that succeeds is logged",
				"error", err)
		case err == nil && failed:
			log.InfoContext(ctx, "ended orders are booked again", "orders", n)
		}
		failed = err != nil
	})
}

// Book books all ended orders that are not booked, in batches, and returns their number. It leaves those that another
// session has locked for the next run. An error ends the run; the batches before it are booked.
func (s *Store) Book(ctx context.Context) (booked int64, err error) {
	for after := (uuid.UUID{}); ; {
		n, last, err := s.book(ctx, after)
		booked += n
		if err != nil || n == 0 {
			return booked, err
		}
		after = last
	}
}

// book books a batch of the ended orders whose ids follow after, and returns their number and the last id.
func (s *Store) book(ctx context.Context, after uuid.UUID) (booked int64, last uuid.UUID, err error) {
	ctx, cancel := context.WithTimeout(ctx, bookTimeout)
	defer cancel()
	var batch struct {
		Orders int64
		Last   *uuid.UUID
	}
	if _, err := postgres.Scan(ctx, s.db, &batch, bookSQL, after); err != nil {
		return 0, after, fmt.Errorf("book ended orders: %w", err)
	}
	if batch.Last != nil {
		after = *batch.Last
	}
	return batch.Orders, after, nil
}

// notBooked are the ended orders that are not booked. It counts at most 100,000.
type notBooked struct {
	Orders int64
	Oldest float64 // the time since the earliest of their ends, in seconds
}

func (s *Store) notBooked(ctx context.Context) (n notBooked, err error) {
	if _, err := postgres.Scan(ctx, s.db, &n, notBookedSQL); err != nil {
		return notBooked{}, fmt.Errorf("count the orders that are not booked: %w", err)
	}
	return n, nil
}

// checkBooking is the check of `doctor` that looks for orders that no booker has booked.
func (s *Store) checkBooking(ctx context.Context) error {
	n, err := s.notBooked(ctx)
	if age := time.Duration(n.Oldest * float64(time.Second)); err == nil && age > staleBooking {
		err = fmt.Errorf("%d ended orders are not booked, the oldest ended %v ago: is a reconciler running?",
			n.Orders, age.Round(time.Second))
	}
	return err
}

// newBookingGauge returns the gauge of the oldest order that is not booked, which asks the database at each scrape. Its
// value is NaN if the database does not answer within a second.
func newBookingGauge(s *Store) prometheus.GaugeFunc {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "orders_not_booked_oldest_seconds",
		Help: "Time since the end of the oldest order that is not booked, in seconds; 0 if there is none.",
	}, func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		n, err := s.notBooked(ctx)
		if err != nil {
			return math.NaN()
		}
		return n.Oldest
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
	// Owed locks the rows that refer to some ended orders until the transaction ends, and returns those of the orders
	// that must stay, because something of them is owed.
	Owed(tx *gorm.DB, ids []uuid.UUID) ([]uuid.UUID, error)
	// Remove removes the rows that refer to orders of which no package has said that something is owed.
	Remove(tx *gorm.DB, ids []uuid.UUID) error
	// OrderOf returns the order to which the row with this id refers. found is false if the package has no such row.
	OrderOf(db *gorm.DB, id string) (order uuid.UUID, found bool, err error)
}

// Remover removes booked orders a time after they ended. Any number of removers may run: each skips the orders that
// another one has locked.
type Remover struct {
	service *Service
	keep    time.Duration
	removed prometheus.Counter
	lastRun prometheus.Gauge
	log     *slog.Logger
}

// NewRemover returns a remover of the orders that ended longer ago than keep.
func NewRemover(s *Service, keep time.Duration, log *slog.Logger, reg prometheus.Registerer) *Remover {
	return &Remover{
		service: s, keep: keep, log: log,
		removed: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "orders_removed_total",
			Help: "Ended orders that were removed.",
		}),
		lastRun: promauto.With(reg).NewGauge(prometheus.GaugeOpts{
			Name: "orders_removal_last_run_timestamp_seconds",
			Help: "When a run of the removal last reached the newest order that it may remove, as a Unix time; at first the start of the process, and 0 if orders are kept for ever.",
		}),
	}
}

// Run removes orders until ctx ends, and then returns nil.
func (r *Remover) Run(ctx context.Context) error {
	r.lastRun.SetToCurrentTime()
	return reconcile.Every(ctx, min(removeEvery, r.keep), r.log, func(ctx context.Context) {
		n, err := r.Remove(ctx)
		switch {
		case ctx.Err() != nil: // the process stops
		case err != nil:
			r.log.WarnContext(ctx, "old orders could not be removed; the next run tries again", "removed", n, "error", err)
		case n > 0:
			r.log.InfoContext(ctx, "old orders were removed", "orders", n)
		}
	})
}

// Remove removes all orders that are old enough, in batches, and returns their number. It leaves those that another
// session has locked for the next run. An error ends the run; the batches before it are removed. It pauses after each
// batch.
func (r *Remover) Remove(ctx context.Context) (removed int64, err error) {
	for after := (uuid.UUID{}); ; {
		began := time.Now()
		batch, n, err := r.service.removeBatch(ctx, r.keep, after)
		removed += n
		r.removed.Add(float64(n))
		if err != nil {
			return removed, err
		}
		if len(batch) == 0 {
			r.lastRun.SetToCurrentTime()
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

// removeBatch removes the next batch of the orders that ended longer ago than keep, but for those that must stay. It
// returns all orders of the batch, and the number of those that were removed. after is the last order of the batch
// before.
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
		removed, err = s.remove(tx, batch)
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("remove orders: %w", err)
	}
	return batch, removed, nil
}

// remove removes those of some locked, booked orders of which nothing is owed, and returns their number.
func (s *Service) remove(tx *gorm.DB, ids []uuid.UUID) (removed int64, err error) {
	free := slices.Clone(ids)
	for _, d := range s.cfg.Dependents {
		owed, err := d.Owed(tx, ids)
		if err != nil {
			return 0, err
		}
		free = slices.DeleteFunc(free, func(id uuid.UUID) bool { return slices.Contains(owed, id) })
	}
	for _, d := range s.cfg.Dependents {
		if err := d.Remove(tx, free); err != nil {
			return 0, err
		}
	}
	err = tx.Raw(removeSQL, free).Scan(&removed).Error
	return removed, err
}
