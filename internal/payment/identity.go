package payment

import "context"

// The operations that tell who the key belongs to.
const (
	opAccount     = "account"
	opPermissions = "permissions"
	opEndpoints   = "list_endpoints"
)

// identify makes a call that tells who the key belongs to. A process makes few of them, and a key that may not make them
// is no outage: so they need no breaker, and tell the log nothing.
func identify[T any](ctx context.Context, operation string, do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := do(ctx)
	return answer, providerError(operation, err)
}

// Account is [Identity.Account].
func (c *Calls) Account(ctx context.Context) (string, error) {
	return identify(ctx, opAccount, c.provider.Account)
}

// Permissions is [Identity.Permissions].
func (c *Calls) Permissions(ctx context.Context) (map[string]error, error) {
	return identify(ctx, opPermissions, c.provider.Permissions)
}

// Endpoints is [Identity.Endpoints].
func (c *Calls) Endpoints(ctx context.Context) ([]Endpoint, error) {
	return identify(ctx, opEndpoints, c.provider.Endpoints)
}
