package provider

import (
	"context"
	"strings"
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

// ModeOf returns the mode of an API key: "live" or "test".
func ModeOf(key string) string {
	if strings.Contains(key, "_live_") {
		return "live"
	}
	return "test"
}
