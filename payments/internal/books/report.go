package books

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/app"
	"example.com/shop/payments/internal/provider"
)

// Report compares the provider's books with the tables.
type Report struct {
	Number          int64            `json:"number"`
	MadeAt          time.Time        `json:"made_at"`
	Position        time.Time        `json:"position"` // all movements before it are read
	Balanced        bool             `json:"balanced"` // reports whether nothing but unclaimed money needs an operator
	Foreign         int64            `json:"foreign_charges"`
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

// oldReport is the age of the last report from which an operator must find out why there is no newer one. As in the
// alert BooksOld, some reports may fail before.
const oldReport = 3 * time.Hour

// Check is the check of `doctor` that looks at the last report. Its error says what an operator can do.
func (r *Reconciliation) Check(ctx context.Context) error {
	last, err := r.Last(ctx)
	switch {
	case err != nil:
		return err
	case last == nil:
		return fmt.Errorf("%w: there is no report of the provider's books yet; "+
			"a process with the role reconciler makes one every hour", app.ErrUnchecked)
	}
	var errs []error
	if time.Since(last.MadeAt) > oldReport {
		errs = append(errs, errors.New("it is old: run `payments reconcile`, which prints why"))
	}
	for _, c := range last.Currencies {
		currency := strings.ToUpper(c.Currency)
		if c.DifferenceCount != 0 {
			errs = append(errs, fmt.Errorf("%d differences, %s in all: compare the attempts of GET /ops/api/books "+
				"with the payments in the provider's dashboard", c.DifferenceCount, provider.Amount(c.DifferenceCents, currency)))
		}
		if open := c.UnclaimedCents - c.KeptCents; open != 0 {
			errs = append(errs, fmt.Errorf("%s are unclaimed: return them in the provider's dashboard, "+
				"or keep them on the operators' page", provider.Amount(open, currency)))
		}
	}
	if last.LostSessions > 0 {
		errs = append(errs, fmt.Errorf("%d open sessions are lost: close their incident on the operators' page",
			last.LostSessions))
	}
	if err := app.JoinErrors(errs...); err != nil {
		return fmt.Errorf("report %d of %s: %w", last.Number, last.MadeAt.UTC().Format(time.RFC3339), err)
	}
	return nil
}
