package payment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/books"
	"example.com/shop/payments/internal/provider"
)

// books returns the reconciliation with the provider's books of a process.
func (o ProviderOptions) books(p *app.Process, tasks delay.TaskRows, calls *provider.Calls) *books.Reconciliation {
	return books.NewReconciliation(p.DB, tasks, calls, books.Config{
		Deployment: o.Deployment, AttemptKind: attempt.Kind,
	}, p.Log)
}

// ReadBooks reads the provider's books once, as [books.Reconciliation.Run] does, and prints the report as JSON. It returns an error
// unless the report is balanced.
func ReadBooks(ctx context.Context, p *app.Process, o ProviderOptions, from time.Time, out io.Writer) error {
	stripe := provider.NewStripe(o.StripeURL, o.StripeKey)
	defer stripe.Close()
	unseen := prometheus.NewRegistry() // nobody scrapes a command
	owner := provider.NewGuard(p.DB, stripe, o.Deployment, provider.ModeOf(o.StripeKey), p.Log, unseen)
	if err := owner.Start(ctx); err != nil {
		return err
	}
	calls := provider.NewCalls(stripe, provider.CallsConfig{Limits: o.limits(), MayWrite: owner.MayWrite}, p.Log, unseen)
	r, err := o.books(p, delay.TaskRows{}, calls).Run(ctx, from)
	if err != nil {
		return err
	}
	printed := json.NewEncoder(out)
	printed.SetIndent("", "  ")
	if err := printed.Encode(r); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	if !r.Balanced {
		return errors.New("the payment provider's books differ from the tables")
	}
	return nil
}
