package main

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/rest"
)

// status is the state of a booking. A booking starts as pending and ends once:
//
//	         its customer sends the code ──▶ confirmed
//	pending  its customer gives it back ───▶ released
//	   │     the fifth wrong code ─────────▶ refused
//	   └──── the deadline passes ──────────▶ expired
//
// The first three happen before the deadline. A pending or confirmed booking has its places, and any other has given
// them back to its course.
type status string

const (
	pending   status = "pending"
	confirmed status = "confirmed"
	released  status = "released"
	refused   status = "refused"
	expired   status = "expired"
)

// booking is a booking as its customer sees it. All times are read from the database's clock. Its methods are the rules
// of a booking's life: each changes the booking as its customer may at ServerTime, or returns the reason why it may not
// be changed. A request that was done before changes nothing, and is no error. service.update locks and reads the
// booking before, and writes it afterwards.
type booking struct {
	ID          uuid.UUID  `json:"id"`
	CourseID    uuid.UUID  `json:"course_id"`
	Places      int64      `json:"places"`
	Status      status     `json:"status"`
	Code        string     `json:"-"` // no answer shows it: it is sent to the customer
	WrongCodes  int64      `json:"-"`
	Fingerprint []byte     `json:"-"` // of the wish; nil: it had no idempotency key
	CreatedAt   time.Time  `json:"created_at"`
	ExpiresAt   time.Time  `json:"expires_at"` // the deadline: the booking must be confirmed earlier
	EndedAt     *time.Time `json:"ended_at,omitempty"`
	ServerTime  time.Time  `json:"server_time"` // when the booking was read
}

// maxWrongCodes is the number of wrong codes that ends a booking, so that nobody can guess its code. The constraint
// bookings_wrong_codes has it, too.
const maxWrongCodes = 5

// confirm confirms the booking with its code. A wrong code changes the booking, too, although it is an error.
func (b *booking) confirm(code string) error {
	switch err := b.whyNotChangeable(); {
	case b.Status == confirmed && code == b.Code:
		return nil
	case err != nil:
		return err
	case code == b.Code:
		b.end(confirmed)
		return nil
	}
	b.WrongCodes++
	left := maxWrongCodes - b.WrongCodes
	if left == 0 {
		b.end(refused)
	}
	err := wrongCode.Errorf("This is not the code of the booking. Attempts left: %d.", left)
	err.Extensions = map[string]any{"attempts_left": left}
	return err
}

// release gives the places of the booking back.
func (b *booking) release() error {
	switch err := b.whyNotChangeable(); {
	case b.Status == released:
		return nil
	case err != nil:
		return err
	}
	b.end(released)
	return nil
}

func (b *booking) end(as status) { b.Status, b.EndedAt = as, new(b.ServerTime) }

// whyNotChangeable returns nil if the booking is pending and its deadline has not passed, and else the reason why its
// customer cannot change it any more.
func (b *booking) whyNotChangeable() error {
	switch {
	case b.Status == pending && b.ServerTime.Before(b.ExpiresAt):
		return nil
	case b.Status == confirmed:
		return alreadyConfirmed.Errorf("The booking was confirmed at %s, and its places are taken for good.",
			stamp(*b.EndedAt))
	case b.Status == released:
		return alreadyReleased.Errorf("The booking was given back at %s.", stamp(*b.EndedAt))
	case b.Status == refused:
		return tooManyCodes.Errorf("The booking ended at %s, after %d wrong codes.", stamp(*b.EndedAt), b.WrongCodes)
	default: // expired, or pending past its deadline
		return deadlinePassed.Errorf("The booking was not confirmed by its deadline, %s.", stamp(b.ExpiresAt))
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// wish is a request for a booking.
type wish struct {
	key    string // a request with the key of an earlier one gets the same booking; "": no key
	course uuid.UUID
	places int64
}

// fingerprint returns a hash of the wish, to detect that an idempotency key is reused for another wish. It is nil
// without a key. If a new version computes another hash, requests that are repeated during the update fail.
func (w wish) fingerprint() []byte {
	if w.key == "" {
		return nil
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", w.course, w.places))
	return sum[:]
}

// course is what a creation needs to know of a course.
type course struct {
	ID       uuid.UUID
	Free     int64 // the places that nobody has booked
	BeginsAt time.Time
}

// needs is what a creation reads of the tables, with its locks.
type needs struct {
	course   []course  // one, or none
	existing []booking // the booking with the wish's idempotency key, or none
	open     []booking // the pending bookings of the customer
	now      time.Time // by the database's clock
}

// decide returns the new booking that a wish gets, or the existing one, or the reason why it gets none.
func (n *needs) decide(w wish, o *options) (b *booking, replayed bool, err error) {
	if len(n.existing) > 0 {
		b := &n.existing[0]
		if !bytes.Equal(b.Fingerprint, w.fingerprint()) {
			return nil, false, rest.KeyReused.Errorf("The Idempotency-Key belongs to the other wish of booking %s.", b.ID)
		}
		return b, true, nil
	}
	if len(n.course) == 0 || !n.now.Before(n.course[0].BeginsAt) {
		return nil, false, unknownCourse.Errorf("There is no course %s, or it has begun.", w.course)
	}
	places, open := w.places, []uuid.UUID{}
	for _, b := range n.open {
		if n.now.Before(b.ExpiresAt) { // otherwise its customer can no longer confirm it
			places, open = places+b.Places, append(open, b.ID)
		}
	}
	if places > o.MaxOpenPlaces {
		err := tooManyPlaces.Errorf("You would have %d places that are not confirmed, and can have at most %d.",
			places, o.MaxOpenPlaces)
		err.Extensions = map[string]any{"open_bookings": open}
		return nil, false, err
	}
	if free := n.course[0].Free; w.places > free {
		return nil, false, soldOut.Errorf("%d places are wanted, and %d are free.", w.places, free)
	}
	return &booking{
		ID: keyset.NewID(), CourseID: w.course, Places: w.places, Status: pending, Code: rand.Text()[:8],
		Fingerprint: w.fingerprint(), CreatedAt: n.now, ServerTime: n.now,
		ExpiresAt: n.now.Add(o.Timeout.Truncate(time.Microsecond)), // as the database stores it
	}, false, nil
}

// The problems that package rest does not declare.
var (
	unknownCourse    = rest.Class{Code: "unknown-course", Status: http.StatusUnprocessableEntity, Title: "Unknown course"}
	soldOut          = rest.Class{Code: "sold-out", Status: http.StatusConflict, Title: "Too few places are free"}
	tooManyPlaces    = rest.Class{Code: "too-many-places", Status: http.StatusConflict, Title: "Too many places"}
	wrongCode        = rest.Class{Code: "wrong-code", Status: http.StatusUnprocessableEntity, Title: "Wrong code"}
	tooManyCodes     = rest.Class{Code: "booking-refused", Status: http.StatusConflict, Title: "Too many wrong codes"}
	alreadyConfirmed = rest.Class{Code: "booking-confirmed", Status: http.StatusConflict, Title: "Booking confirmed"}
	alreadyReleased  = rest.Class{Code: "booking-released", Status: http.StatusConflict, Title: "Booking given back"}
	deadlinePassed   = rest.Class{Code: "booking-expired", Status: http.StatusConflict, Title: "Booking expired"}
)
