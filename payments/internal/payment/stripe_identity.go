package payment

import (
	"context"
	"strings"
	"sync"

	"github.com/stripe/stripe-go/v85"
	"golang.org/x/sync/errgroup"
)

// Account implements [Identity].
func (p *Stripe) Account(ctx context.Context) (id string, err error) {
	account, err := p.stripe.V1Accounts.Retrieve(ctx, nil)
	if err == nil && account.ID == "" {
		err = errUnusable
	}
	if err != nil {
		return "", classify(opAccount, err)
	}
	return account.ID, nil
}

// Endpoints implements [Identity].
func (p *Stripe) Endpoints(ctx context.Context) (all []Endpoint, err error) {
	params := &stripe.WebhookEndpointListParams{}
	params.Limit = stripe.Int64(100)
	list := p.stripe.V1WebhookEndpoints.List(ctx, params)
	for e, err := range list.All(ctx) {
		if err != nil {
			return nil, classify(opEndpoints, err)
		}
		all = append(all, Endpoint{URL: e.URL, Enabled: e.Status == "enabled", Events: e.EnabledEvents})
	}
	if list.Meta().URL == "" {
		return nil, classify(opEndpoints, errUnusable)
	}
	return all, nil
}

// nothing is the id of an object that does not exist: a call that would change it changes nothing.
const nothing = "does_not_exist"

// Permissions implements [Identity]. Stripe looks at the permissions of a key before it looks for the object of a call, so
// calls about an object that does not exist tell whether the key may make them. It makes them at the same time: one after the
// other, those of a slow provider would not fit into the time for one call.
func (p *Stripe) Permissions(ctx context.Context) (map[string]error, error) {
	one := stripe.ListParams{Limit: stripe.Int64(1), Single: true}
	var mu sync.Mutex
	var calls errgroup.Group
	denied := map[string]error{}
	for operation, try := range map[string]func() error{
		opRetrieve: func() error {
			_, err := p.stripe.V1CheckoutSessions.Retrieve(ctx, nothing, nil)
			return err
		},
		opExpire: func() error { // the same permission as create
			_, err := p.stripe.V1CheckoutSessions.Expire(ctx, nothing, nil)
			return err
		},
		opRefunds: func() error {
			for _, err := range p.stripe.V1Refunds.List(ctx, &stripe.RefundListParams{ListParams: one}).All(ctx) {
				return err
			}
			return nil
		},
		opRefund: func() error {
			_, err := p.stripe.V1Refunds.Create(ctx, &stripe.RefundCreateParams{PaymentIntent: stripe.String(nothing)})
			return err
		},
		"list_balance_transactions": func() error {
			for _, err := range p.stripe.V1BalanceTransactions.List(ctx, &stripe.BalanceTransactionListParams{ListParams: one}).All(ctx) {
				return err
			}
			return nil
		},
	} {
		calls.Go(func() error {
			err := classify(operation, try())
			if isClass(err, NoAnswer, Busy) {
				return err
			}
			if !isClass(err, Denied) { // the provider has looked for the object
				err = nil
			}
			mu.Lock()
			defer mu.Unlock()
			denied[operation] = err
			return nil
		})
	}
	if err := calls.Wait(); err != nil {
		return nil, err
	}
	return denied, nil
}

// modeOf returns the mode of an API key: "live" or "test".
func modeOf(key string) string {
	if strings.Contains(key, "_live_") {
		return "live"
	}
	return "test"
}
