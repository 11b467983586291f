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

// check returns one error that names all options with wrong values. api reports whether the process serves the API.
func (o *Options) check(api bool) error {
	if !api {
		return o.Order.Check()
	}
	return app.JoinErrors(
		o.Order.Check(),
		app.RequireOptions(map[string]string{"token-key": o.TokenKey}), app.CheckSecret("token-key", o.TokenKey, 32),
		o.Ops.Check(o.TokenKey),
	)
}

// Serve has the options of `serve`.
type Serve struct {
	app.Serve
	Options
}

// Check returns one error that names all options with wrong values.
func (o *Serve) Check() error {
	return app.JoinErrors(o.Serve.Check(), o.check(o.Has(app.API)))
}

// NewTokens returns the tokens of customers, which a key signs.
func NewTokens(key string) (*rest.Tokens, error) {
	return rest.NewTokens(rest.TokenConfig{
		Key: []byte(key), Issuer: "shop", Audience: "shop-customers",
		Cookie: "shop_token", CookiePath: "/api", SignUp: "sign up with POST /api/customers",
	})
}
