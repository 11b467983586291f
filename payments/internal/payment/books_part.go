package payment

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	provider := NewStripe(o.StripeURL, o.StripeKey)
	defer provider.Close()
	unseen := prometheus.NewRegistry() // nobody scrapes a command
	store := NewStore(p.DB)
	owner := newGuard(p.DB, accountOf(provider), o.Deployment, modeOf(o.StripeKey), p.Log, unseen)
	calls := NewCalls(provider, CallsConfig{Limits: o.limits(), MayWrite: owner.mayWrite}, p.Log, unseen)
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
