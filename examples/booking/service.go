package main

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/timeout"
)

// expireKind is the kind of the tasks that expire bookings. The id of a task is the id of its booking.
const expireKind = "booking.expire"

// The statements. Each transaction locks and reads, has a method of booking or of needs decide, and writes by one
// statement. Only the timeouts of a batch are decided by their statement, because they have one rule.
//
// The locks are taken in one order, so that no two transactions deadlock: the booking, its course, the customer, and
// the outbox. The row of a course is a counter that many bookings change. So a transaction that locks it must be short,
// and waits for nothing but the locks that follow.
const (
	selectBookings = `
		SELECT id, course_id, places, status, code, wrong_codes, fingerprint, created_at, expires_at, ended_at,
		       clock_timestamp() AS server_time
		FROM bookings `
	lockBooking = `SELECT FROM bookings WHERE id = $1 AND customer_id = $2 FOR UPDATE`
	readBooking = selectBookings + `WHERE id = $1 AND customer_id = $2`

	// NO KEY, because the foreign keys of other bookings take KEY SHARE locks on the course.
	lockCourse = `SELECT id, free, begins_at FROM courses WHERE id = $1 FOR NO KEY UPDATE`
	// A customer has no row to lock. The lock makes the bookings of a customer count each other, of all courses.
	lockCustomer = `SELECT pg_advisory_xact_lock(hashtextextended($1::uuid::text, 0))`
	readByKey    = selectBookings + `WHERE customer_id = $1 AND idempotency_key = $2`
	readOpen     = selectBookings + `WHERE customer_id = $1 AND status = 'pending'`
)

var (
	//go:embed create.sql
	createSQL string
	//go:embed update.sql
	updateSQL string
	//go:embed expire.sql
	expireSQL string
	//go:embed free.sql
	freeSQL string
)

// rows describes the bookings that time out. To time out a booking means to expire it. Its shared row is its course.
var rows = timeout.Rows{Table: "bookings", Due: "expires_at", TimeOut: expireSQL, Free: freeSQL}

// service keeps bookings in PostgreSQL.
type service struct {
	db           *gorm.DB
	options      *options
	expire, code publisher         // of the tasks of each kind
	gate         *postgres.Gate    // for transactions that may wait for locks: connections are left for all others
	turns        *postgres.KeyGate // for creations that need the same course
	wait         time.Duration     // for a slot of the gate, and for the lock of a course
}

type publisher interface {
	Publish(ctx context.Context, messages ...delay.Message) bool
}

// At most turnsAtATime creations work on a course or wait for its lock, and the others wait for a turn without a
// connection. Who waits too long for a turn, for a connection or for the lock of a course, is rejected. So a course that a
// session keeps locked, or that all customers want at the same time, does not stop the bookings of all other courses.
const (
	turnsAtATime = 3
	longestWait  = 200 * time.Millisecond
)

func newService(db *gorm.DB, o *options, expire, code publisher) *service {
	return &service{
		db: db, options: o, expire: expire, code: code, gate: postgres.NewGate(db),
		turns: postgres.NewKeyGate(turnsAtATime, longestWait), wait: longestWait,
	}
}

// create creates a booking. If the customer has created one with the same idempotency key before, create returns it in
// its present state, and replayed is true.
func (s *service) create(ctx context.Context, customer uuid.UUID, w wish) (b *booking, replayed bool, err error) {
	var expire, send delay.Message
	var rejection error // is answered after the commit: what it says of the tables must survive a failover, too
	leaveTurn, err := s.turns.Enter(ctx, w.course.String())
	if err != nil {
		return nil, false, busy(err)
	}
	defer leaveTurn()
	err = s.transact(ctx, func(tx *postgres.Tx) error {
		s.waitShortly(tx)
		n := readNeeds(tx, customer, w)
		if err := tx.Send(ctx); err != nil {
			return err
		}
		if b, replayed, rejection = n.decide(w, s.options); rejection != nil || replayed {
			return nil
		}
		// The time to the deadline begins here, and not after the commit.
		expire = delay.At(b.ID.String(), b.ExpiresAt, n.now)
		send = delay.At(b.ID.String(), b.CreatedAt, n.now)
		tx.Queue(createSQL, pgx.NamedArgs{
			"id": b.ID, "customer": customer, "course": b.CourseID, "places": b.Places, "code": b.Code, "key": w.key,
			"fingerprint": b.Fingerprint, "created": b.CreatedAt, "deadline": b.ExpiresAt,
			"expire": expireKind, "send": codeKind,
		})
		return nil
	})
	switch {
	case err != nil:
		const advice = "Repeat the request with the same Idempotency-Key: it then returns the same booking. " +
			"Without a key, it may create a second one."
		return nil, false, rest.OutcomeUnknown(fmt.Errorf("create booking: %w", err), advice)
	case rejection != nil:
		return nil, false, rejection
	case !replayed:
		// The booking and its outbox rows are committed. If Publish fails, the relay publishes the rows.
		s.expire.Publish(ctx, expire)
		s.code.Publish(ctx, send)
	}
	return b, replayed, nil
}

// busy returns the error of a request that has waited too long for its turn, a connection or a lock.
func busy(err error) error {
	const detail = "Too many requests wait for what this one needs. It has changed nothing: repeat it in a moment."
	return &rest.Error{Class: rest.Overloaded, Detail: detail, Err: err}
}

// transact runs a transaction that may wait for locks.
func (s *service) transact(ctx context.Context, do func(*postgres.Tx) error) error {
	waiting, cancel := context.WithTimeout(ctx, s.wait)
	leave, err := s.gate.Enter(waiting)
	cancel()
	if err != nil {
		return busy(err)
	}
	defer leave()
	if err = postgres.Transact(ctx, s.db, do); postgres.LockTimedOut(err) {
		return busy(err)
	}
	return err
}

// waitShortly queues a statement that bounds the wait for each lock of the rest of a transaction, before it locks a
// course.
func (s *service) waitShortly(tx *postgres.Tx) {
	tx.Queue(`SELECT set_config('lock_timeout', $1, true)`, fmt.Sprint(s.wait.Milliseconds()))
}

// readNeeds queues the statements that lock and read what decides on a wish: first the course, and then the customer,
// are locked. The other statements follow the locks, because a statement that waits for a lock still sees the other
// rows as they were before its wait. The clock comes last, so that the waits do not shorten the time to confirm.
func readNeeds(tx *postgres.Tx, customer uuid.UUID, w wish) *needs {
	n := new(needs)
	tx.Queue(lockCourse, w.course).Query(collect(&n.course))
	tx.Queue(lockCustomer, customer)
	tx.Queue(readByKey, customer, w.key).Query(collect(&n.existing))
	tx.Queue(readOpen, customer).Query(collect(&n.open))
	tx.Queue(`SELECT clock_timestamp() AS now`).QueryRow(func(row pgx.Row) error { return row.Scan(&n.now) })
	return n
}

// collect returns a function that stores all rows.
func collect[T any](all *[]T) func(pgx.Rows) error {
	return func(rows pgx.Rows) (err error) {
		*all, err = pgx.CollectRows(rows, pgx.RowToStructByName[T])
		return err
	}
}

func (s *service) get(ctx context.Context, customer, id uuid.UUID) (*booking, error) {
	var b booking
	found, err := postgres.Scan(ctx, s.db, &b, readBooking, id, customer)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read booking %s: %w", id, err)
	case !found:
		return nil, notFound(id)
	}
	return &b, nil
}

// update is the one way to change a booking. It locks the booking, reads it with the database's clock, has change
// decide, and writes what change has made of it. An error of change does not roll the transaction back, because a wrong
// code must be counted.
func (s *service) update(
	ctx context.Context, customer, id uuid.UUID, change func(*booking) error,
) (b *booking, err error) {
	var rejection error
	err = s.transact(ctx, func(tx *postgres.Tx) error {
		var found []booking
		tx.Queue(lockBooking, id, customer)
		tx.Queue(readBooking, id, customer).Query(collect(&found))
		if err := tx.Send(ctx); err != nil {
			return err
		}
		if len(found) == 0 {
			rejection = notFound(id)
			return nil
		}
		before := found[0]
		b = &found[0]
		rejection = change(b)
		if b.Status != before.Status || b.WrongCodes != before.WrongCodes {
			s.waitShortly(tx)
			tx.Queue(updateSQL, id, b.Status, b.WrongCodes, b.EndedAt)
		}
		return nil
	})
	switch {
	case err != nil:
		const advice = "Repeat the request: a booking ends once. If the code was wrong, it may count twice."
		return nil, rest.OutcomeUnknown(fmt.Errorf("change booking %s: %w", id, err), advice)
	case rejection != nil:
		return nil, rejection
	}
	return b, nil
}

// notFound returns the error for a booking that the customer does not have. It does not disclose whether another
// customer has a booking with this id.
func notFound(id uuid.UUID) error { return rest.NotFound.Errorf("There is no booking %s.", id) }
