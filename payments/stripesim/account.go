package stripesim

import (
	"context"
	"database/sql"
)

// owner is the account and the mode of a key. A key sees only the objects of its owner.
type owner struct {
	account string
	live    bool
}

// mode returns the mode as it stands in the ids of sessions.
func (o owner) mode() string {
	if o.live {
		return "live"
	}
	return "test"
}

// columns returns the values of the columns account and livemode, or NULL for each if o is nil.
func (o *owner) columns() []any {
	if o == nil {
		return []any{nil, nil}
	}
	return []any{o.account, o.live}
}

// accountObject is an account as the API answers it. See https://docs.stripe.com/api/accounts/object.
type accountObject struct {
	ID               string            `json:"id"`
	Object           string            `json:"object"`
	ChargesEnabled   bool              `json:"charges_enabled"`
	Country          string            `json:"country"`
	DefaultCurrency  string            `json:"default_currency"`
	DetailsSubmitted bool              `json:"details_submitted"`
	Metadata         map[string]string `json:"metadata"`
	PayoutsEnabled   bool              `json:"payouts_enabled"`
	Type             string            `json:"type"`
}

// retrieveAccount is GET /v1/account.
func (s *Simulator) retrieveAccount(_ context.Context, _ *sql.Tx, c *call) (any, error) {
	if err := c.form.end(); err != nil {
		return nil, err
	}
	return accountObject{
		ID: c.owner.account, Object: "account", ChargesEnabled: s.knobs.get().Sessions != "refuse", Country: "DE",
		DefaultCurrency: settlementCurrency, DetailsSubmitted: true, Metadata: map[string]string{}, PayoutsEnabled: true,
		Type: "standard",
	}, nil
}

// endpointObject is a receiver of webhooks as the API answers it. See https://docs.stripe.com/api/webhook_endpoints/object.
type endpointObject struct {
	ID            string            `json:"id"`
	Object        string            `json:"object"`
	Created       int64             `json:"created"`
	EnabledEvents []string          `json:"enabled_events"`
	Livemode      bool              `json:"livemode"`
	Metadata      map[string]string `json:"metadata"`
	Status        string            `json:"status"`
	URL           string            `json:"url"`
}

// listEndpoints is GET /v1/webhook_endpoints. The list has at most one endpoint.
func (s *Simulator) listEndpoints(_ context.Context, _ *sql.Tx, c *call) (any, error) {
	p := c.form.page()
	if err := c.form.end(); err != nil {
		return nil, err
	}
	var objects []any
	k := s.knobs.get()
	const id = "we_simulated"
	if _, url := s.urls(); url != "" && p.after == "" {
		status := "enabled"
		if k.Webhooks == "disabled" {
			status = "disabled"
		}
		objects = append(objects, endpointObject{
			ID: id, Object: "webhook_endpoint", EnabledEvents: k.events(), Livemode: c.owner.live,
			Metadata: map[string]string{}, Status: status, URL: url,
		})
	}
	return p.list("/v1/webhook_endpoints", objects), nil
}
