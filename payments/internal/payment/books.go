package payment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/payments/internal/books"
	"example.com/shop/payments/internal/provider"
)

// books returns the reconciliation with the provider's books of a process.
func (o ProviderOptions) books(p *app.Process, calls *provider.Calls) *books.Reconciliation {
	return books.NewReconciliation(p.DB, calls, o.Deployment, p.Log)
}

// ReadBooks reads the provider's books once, as [books.Reconciliation.Run] does, in a process that [Add] was not called
// for, and prints the report as JSON. It returns an error unless the report is balanced.
func ReadBooks(ctx context.Context, p *app.Process, o ProviderOptions, from time.Time, out io.Writer) error {
	calls, _, err := o.connect(ctx, p)
	if err != nil {
		return err
	}
	r, err := o.books(p, calls).Run(ctx, from)
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
