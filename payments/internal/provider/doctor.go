package provider

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"example.com/shop/internal/app"
)

// Checks returns the checks of `doctor` that ask the provider. They change nothing there. webhookPath is the path at
// which the shop receives webhooks.
func Checks(calls *Calls, owner *Guard, webhookPath string) []app.Check {
	return []app.Check{
		{
			Subject: "provider",
			Good: "the key works, and the database has the payments of " + owner.own.Deployment +
				", mode " + owner.own.Mode,
			Run: func(ctx context.Context) error { return checkOwner(ctx, calls, owner) },
		},
		{
			Subject: "webhooks", Good: "an endpoint at the provider is enabled, and has all events",
			Run: func(ctx context.Context) error { return checkEndpoints(ctx, calls, webhookPath) },
		},
	}
}

// nothing is the id of a session that does not exist: to ask for it changes nothing.
const nothing = "does_not_exist"

// checkOwner checks that the provider accepts the key, and that the database has the payments of this process.
func checkOwner(ctx context.Context, calls *Calls, owner *Guard) error {
	if _, err := calls.Retrieve(ctx, ClassConfirm, nothing); err != nil && !IsClass(err, Missing, Refused) {
		return fmt.Errorf("the provider cannot be used: %w", err)
	}
	account, err := owner.account(ctx)
	switch {
	case IsClass(err, Denied):
		return fmt.Errorf("the key works, but the account is %w, because the key may not read it: %w",
			app.ErrUnchecked, err)
	case err != nil:
		return fmt.Errorf("the provider does not tell the account: %w", err)
	}
	stored, err := stored(ctx, owner.db)
	if err != nil || stored == nil { // the first call that writes stores it
		return err
	}
	own := owner.own
	own.Account = &account
	return own.compare(*stored)
}

// checkEndpoints checks that the provider sends all events to an endpoint that could be this shop's: doctor does not
// know the shop's own URL.
func checkEndpoints(ctx context.Context, calls *Calls, webhookPath string) error {
	endpoints, err := calls.Endpoints(ctx)
	switch {
	case IsClass(err, Denied):
		return fmt.Errorf("%w, because the key may not read the endpoints: %w", app.ErrUnchecked, err)
	case err != nil:
		return fmt.Errorf("the provider does not tell its endpoints: %w", err)
	}
	found := fmt.Errorf("the provider has no endpoint whose URL ends with %s", webhookPath)
	for _, e := range endpoints {
		if !strings.HasSuffix(e.URL, webhookPath) {
			continue
		}
		missing := slices.DeleteFunc(slices.Clone(WantedEvents), func(event string) bool {
			return slices.Contains(e.Events, event) || slices.Contains(e.Events, "*")
		})
		switch {
		case !e.Enabled:
			found = fmt.Errorf("the endpoint %s is disabled at the provider", e.URL)
		case len(missing) > 0:
			found = fmt.Errorf("the endpoint %s does not receive %s", e.URL, strings.Join(missing, ", "))
		default:
			return nil
		}
	}
	return found
}
