package payment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/app"
)

// config returns the part of the configuration that all commands have.
func (o ProviderOptions) config() Config {
	return Config{Deployment: o.Deployment, Mode: modeOf(o.StripeKey)}
}

// ReadBooks reads the provider's books once, as [Reconciliation.Run] does, and prints the report. It returns an error unless
// the report is balanced.
func ReadBooks(ctx context.Context, p *app.Process, o ProviderOptions, from time.Time, out io.Writer) error {
	provider := NewStripe(StripeConfig{URL: o.StripeURL, Key: o.StripeKey})
	defer provider.Close()
	unseen := prometheus.NewRegistry() // nobody scrapes a command
	store := NewStore(p.DB)
	owner := newGuard(store, accountOf(provider), o.Deployment, modeOf(o.StripeKey), p.Log, unseen)
	calls := NewCalls(provider, CallsConfig{Limits: o.limits(modeOf(o.StripeKey) == "live"), MayWrite: owner.mayWrite}, p.Log, unseen)
	books := NewReconciliation(store, calls, o.config(), p.Log, unseen)
	r, err := books.Run(ctx, from)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(out, r.Text()); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	if !r.Balanced {
		return errors.New("the payment provider's books differ from the tables")
	}
	return nil
}

// Text returns the report as text.
func (r *Report) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Report %d, of all movements until %s. Foreign charges: %d. Lost sessions: %d open, %d expired.\n",
		r.Number, r.Position.UTC().Format(time.RFC3339), r.Foreign, r.LostSessions, r.ExpiredSessions)
	agree := "The books agree to the cent"
	for _, c := range r.Currencies {
		if c.UnclaimedCents != c.KeptCents {
			agree = "The books agree, apart from what is unclaimed"
		}
		currency := strings.ToUpper(c.Currency)
		fmt.Fprintf(&b, "\n%-16s %18s %18s\n", currency, "provider", "shop")
		for _, row := range []struct {
			name        string
			there, here int64
		}{
			{"opening", c.There.OpeningCents, c.Here.OpeningCents},
			{"captured", c.There.CapturedCents, c.Here.CapturedCents},
			{"- refunded", -c.There.RefundedCents, -c.Here.RefundedCents},
			{"- disputed", -c.There.DisputedCents, -c.Here.DisputedCents},
			{"closing", c.There.ClosingCents, c.Here.ClosingCents},
		} {
			fmt.Fprintf(&b, "%-16s %18s %18s\n", row.name, Amount(row.there, currency), Amount(row.here, currency))
		}
		for _, row := range []struct {
			name   string
			amount int64
		}{
			{"unclaimed", c.UnclaimedCents}, {"of it kept", c.KeptCents}, {"under way", c.UnderWayCents}, {"missing there", c.MissingCents},
			{"missing refunds", c.MissingRefundCents}, {"returned twice", c.TwiceCents}, {"other amounts", c.OtherCents}, {"unexplained", c.UnexplainedCents},
		} {
			if row.amount != 0 {
				fmt.Fprintf(&b, "%-16s %18s\n", row.name, Amount(row.amount, currency))
			}
		}
		if c.DifferenceCount > 0 {
			fmt.Fprintf(&b, "%d differences: %s\n", c.DifferenceCount, c.Differences)
		}
	}
	if r.Balanced {
		fmt.Fprintf(&b, "\n%s.\n", agree)
	}
	return b.String()
}

// oldReport is the age of the last report from which an operator must find out why there is no newer one. As in the alert
// BooksOld, some reports may fail before.
const oldReport = 3 * time.Hour

// checkBooks is the check of `doctor` that looks at the last report. Its error says what an operator can do.
func (s *Store) checkBooks(ctx context.Context) error {
	r, err := s.report(ctx)
	switch {
	case err != nil:
		return err
	case r == nil:
		return fmt.Errorf("%w: there is no report of the provider's books yet; a process with the role reconciler makes one every hour", app.ErrUnchecked)
	}
	var errs []error
	if time.Since(r.MadeAt) > oldReport {
		errs = append(errs, errors.New("it is old: run `payments reconcile`, which prints why"))
	}
	for _, c := range r.Currencies {
		if c.DifferenceCount != 0 || c.UnexplainedCents != 0 {
			errs = append(errs, fmt.Errorf("%d differences, and %s unexplained: compare the attempts of GET /ops/api/books with the payments in the provider's dashboard",
				c.DifferenceCount, Amount(c.UnexplainedCents, strings.ToUpper(c.Currency))))
		}
		if open := c.UnclaimedCents - c.KeptCents; open != 0 {
			errs = append(errs, fmt.Errorf("%s are unclaimed: return them in the provider's dashboard, or keep them on the operators' page", Amount(open, strings.ToUpper(c.Currency))))
		}
	}
	if r.LostSessions > 0 {
		errs = append(errs, fmt.Errorf("%d open sessions are lost: close their incident on the operators' page", r.LostSessions))
	}
	if err := app.JoinErrors(errs...); err != nil {
		return fmt.Errorf("report %d of %s: %w", r.Number, r.MadeAt.UTC().Format(time.RFC3339), err)
	}
	return nil
}

// booksCollector reads the last report at each scrape.
type booksCollector struct {
	store                                     *Store
	unclaimed, unexplained, count, lost, aged *prometheus.Desc
}

// newBooksCollector returns a collector of the last report of the books. If the database does not answer within a second,
// or there is no report yet, the scrape lacks these metrics.
func newBooksCollector(s *Store) prometheus.Collector {
	return &booksCollector{
		store: s,
		unclaimed: prometheus.NewDesc("payment_unclaimed_cents",
			"Money at the payment provider that is this deployment's and matches no attempt, without what an operator keeps, "+
				"in the currency's smallest unit.", []string{"currency"}, nil),
		unexplained: prometheus.NewDesc("payment_books_unexplained_cents",
			"Difference between the payment provider's books and the tables that has no explanation, "+
				"in the currency's smallest unit.", []string{"currency"}, nil),
		count: prometheus.NewDesc("payment_books_differences",
			"Attempts whose amounts in the payment provider's books and in the tables differ.", []string{"currency"}, nil),
		lost: prometheus.NewDesc("payment_lost_sessions",
			"Open sessions at the payment provider whose attempts the database does not have, and that no operator has looked at.", nil, nil),
		aged: prometheus.NewDesc("payment_books_age_seconds",
			"Age of the last report of the payment provider's books, in seconds.", nil, nil),
	}
}

func (c *booksCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.unclaimed, c.unexplained, c.count, c.lost, c.aged} {
		ch <- d
	}
}

func (c *booksCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	r, err := c.store.report(ctx)
	if err != nil || r == nil {
		return
	}
	ch <- prometheus.MustNewConstMetric(c.lost, prometheus.GaugeValue, float64(r.LostSessions))
	ch <- prometheus.MustNewConstMetric(c.aged, prometheus.GaugeValue, time.Since(r.MadeAt).Seconds())
	for _, part := range r.Currencies {
		for desc, v := range map[*prometheus.Desc]int64{
			c.unclaimed: part.UnclaimedCents - part.KeptCents, c.unexplained: part.UnexplainedCents, c.count: part.DifferenceCount,
		} {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(v), strings.ToUpper(part.Currency))
		}
	}
}
