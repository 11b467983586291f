package payment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/internal/trace"
	"example.com/shop/payments/internal/books"
	"example.com/shop/payments/internal/provider"
)

// books returns the reconciliation with the provider's books of a process.
func (o ProviderOptions) books(b *app.Base, calls *provider.Calls) *books.Reconciliation {
	return books.NewReconciliation(b.DB, calls, o.Deployment, b.Log)
}

// ReadBooks reads the provider's books once, as [books.Reconciliation.Run] does, without the other components of
// payments, and prints the report as JSON. It returns an error unless the report is balanced.
func ReadBooks(
	ctx context.Context, b *app.Base, o ProviderOptions, tracer *trace.Tracer, from time.Time, out io.Writer,
) error {
	p, err := o.connect(ctx, b, tracer)
	if err != nil {
		return err
	}
	defer p.close()
	r, err := o.books(b, p.calls).Run(ctx, from)
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
