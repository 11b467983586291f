package stripesim

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// owner is the account and the mode of a key. A key sees only the objects of its owner.
type owner struct {
	Account  string
	Livemode bool
}

// mode returns the mode as it stands in the ids of sessions.
func (o owner) mode() string {
	if o.Livemode {
		return "live"
	}
	return "test"
}

// retrieveAccount is GET /v1/account. See https://docs.stripe.com/api/accounts/object.
func (s *Simulator) retrieveAccount(_ context.Context, _ pgx.Tx, c *call) (any, error) {
	if err := c.form.end(); err != nil {
		return nil, err
	}
	return fields{
		"id":                c.owner.Account,
		"object":            "account",
		"charges_enabled":   s.knobs.get().Sessions != "refuse",
		"country":           "DE",
		"default_currency":  settlementCurrency,
		"details_submitted": true,
		"metadata":          fields{},
		"payouts_enabled":   true,
		"type":              "standard",
	}, nil
}

// listEndpoints is GET /v1/webhook_endpoints. The list has at most one endpoint. See
// https://docs.stripe.com/api/webhook_endpoints/object.
func (s *Simulator) listEndpoints(_ context.Context, _ pgx.Tx, c *call) (any, error) {
	p := c.form.page()
	if err := c.form.end(); err != nil {
		return nil, err
	}
	var objects []fields
	k := s.knobs.get()
	if s.cfg.WebhookURL != "" && p.after == "" {
		status := "enabled"
		if k.Webhooks == "disabled" {
			status = "disabled"
		}
		objects = append(objects, fields{
			"id":             "we_simulated",
			"object":         "webhook_endpoint",
			"created":        0,
			"enabled_events": splitList(k.Events),
			"livemode":       c.owner.Livemode,
			"metadata":       fields{},
			"status":         status,
			"url":            s.cfg.WebhookURL,
		})
	}
	return p.list("/v1/webhook_endpoints", objects), nil
}
