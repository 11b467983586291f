package books

import (
	"time"

	"github.com/google/uuid"
)

// Report compares the provider's books with the tables.
type Report struct {
	Number          int64            `json:"number"`
	MadeAt          time.Time        `json:"made_at"`
	Position        time.Time        `json:"position"` // all movements before it are read
	Balanced        bool             `json:"balanced"` // reports whether nothing but unclaimed money needs an operator
	ExpiredSessions int64            `json:"expired_sessions"`
	LostSessions    int64            `json:"lost_sessions"` // that an operator must look at before they are expired
	Currencies      []CurrencyReport `json:"currencies"`
}

// CurrencyReport is the part of a report about one currency. The amounts are cents, and of both sums the rest is
// captured - refunded - disputed:
//
//	the rest there = the rest here + unclaimed + under way + difference
type CurrencyReport struct {
	Currency        string       `json:"currency"`
	There           Sums         `json:"there" gorm:"embedded;embeddedPrefix:there_"`
	Here            Sums         `json:"here" gorm:"embedded;embeddedPrefix:here_"`
	UnclaimedCents  int64        `json:"unclaimed_cents"`  // of this deployment, and matches no attempt
	KeptCents       int64        `json:"kept_cents"`       // the part of it that an operator has kept
	UnderWayCents   int64        `json:"under_way_cents"`  // final on one side only, until now
	ByHandCents     int64        `json:"by_hand_cents"`    // the part of what is refunded that only the books tell
	DifferenceCents int64        `json:"difference_cents"` // the sum of the differences, which nothing explains
	DifferenceCount int64        `json:"difference_count"`
	Differences     []Difference `json:"differences" gorm:"serializer:json"` // at most 100
}

// Sums are the sums of all movements of a currency.
type Sums struct {
	CapturedCents int64 `json:"captured_cents"`
	RefundedCents int64 `json:"refunded_cents"`
	DisputedCents int64 `json:"disputed_cents"`
}

// Difference is an amount of an attempt that differs.
type Difference struct {
	Attempt uuid.UUID `json:"attempt_id"`
	What    string    `json:"what"` // captured, refunded or disputed
	There   int64     `json:"there_cents"`
	Here    int64     `json:"here_cents"`
}
