package payment_test

import (
	"context"

	"example.com/shop/internal/payment"
)

func (m *memory) Account(ctx context.Context) (id string, err error) {
	err = m.call(ctx, "account", func() error {
		id = "acct_memory"
		return nil
	})
	return id, err
}

func (m *memory) Permissions(ctx context.Context) (map[string]error, error) {
	return map[string]error{}, m.call(ctx, "permissions", func() error { return nil })
}

func (m *memory) Endpoints(ctx context.Context) ([]payment.Endpoint, error) {
	return nil, m.call(ctx, "list_endpoints", func() error { return nil })
}
