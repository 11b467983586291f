package provider

import (
	"context"
	"fmt"

	"example.com/shop/internal/app"
)

// Check returns the check of `doctor` that asks the provider. It changes nothing there.
func Check(calls *Calls, owner *Guard) app.Check {
	return app.Check{
		Subject: "provider",
		Good:    "the key works, and the database has the payments of " + owner.own.Deployment + ", mode " + owner.own.Mode,
		Run:     func(ctx context.Context) error { return checkOwner(ctx, calls, owner) },
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
