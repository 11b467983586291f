package shop

import (
	"example.com/shop/internal/app"
	"example.com/shop/internal/ops"
	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
)

// Options are the options of a process that serves, besides those that every process has.
type Options struct {
	TokenKey     string `name:"token-key" placeholder:"SECRET" help:"The key that signs the customers' tokens, at least 32 bytes."`
	TokenKeyFile string `name:"token-key-file" placeholder:"FILE" help:"The file with the token key, instead of --token-key."`

	Order order.Options `embed:""`
	Ops   ops.Options   `embed:""`
}

// Serve has the options of `serve`.
type Serve struct {
	app.Serve
	Options
}

// Check returns one error that names all options with wrong values.
func (o *Serve) Check() error {
	errs := []error{o.Serve.Check(), o.Order.Check()}
	if o.Has(app.API) {
		errs = append(errs, app.RequireOptions(map[string]string{"token-key": o.TokenKey}),
			app.CheckSecret("token-key", o.TokenKey, 32), o.Ops.Check(o.TokenKey))
	}
	return app.JoinErrors(errs...)
}

// NewTokens returns the tokens of customers, which a key signs.
func NewTokens(key string) (*rest.Tokens, error) {
	return rest.NewTokens(rest.TokenConfig{
		Key: []byte(key), Issuer: "shop", Audience: "shop-customers",
		Cookie: "shop_token", CookiePath: "/api", SignUp: "sign up with POST /api/customers",
	})
}
