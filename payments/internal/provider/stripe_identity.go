package provider

import (
	"context"
	"strings"

	"github.com/stripe/stripe-go/v85"
)

// Account implements [Identity].
func (p *Stripe) Account(ctx context.Context) (id string, err error) {
	account, err := p.stripe.V1Accounts.Retrieve(ctx, nil)
	if err == nil && account.ID == "" {
		err = errUnusable
	}
	if err == nil {
		id = account.ID
	}
	return id, classify(opAccount, err)
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
	return all, checkList(opEndpoints, list)
}

// ModeOf returns the mode of an API key: "live" or "test".
func ModeOf(key string) string {
	if strings.Contains(key, "_live_") {
		return "live"
	}
	return "test"
}
