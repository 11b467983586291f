package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/ops"
)

// options are the options of bookings and of the operators' API.
type options struct {
	Timeout      time.Duration `name:"timeout" default:"5m" help:"The time to confirm a booking."`
	MaxOpenSeats int64         `name:"max-open-seats" default:"10" help:"The most seats that a customer can have in bookings that are not confirmed."`

	TokenKey     string `name:"token-key" placeholder:"SECRET" help:"The key that signs the customers' tokens, at least 32 bytes."`
	TokenKeyFile string `name:"token-key-file" placeholder:"FILE" help:"The file with the token key, instead of --token-key."`

	Ops ops.Options `embed:""`
}

// check returns one error that names all options with wrong values. api reports whether the process serves the API.
func (o *options) check(api bool) error {
	var errs []error
	if o.Timeout < time.Second {
		errs = append(errs, fmt.Errorf("%s is %v, want at least 1s", app.OptionName("timeout"), o.Timeout))
	}
	if o.MaxOpenSeats < 1 {
		errs = append(errs, fmt.Errorf("%s is %d, want at least 1", app.OptionName("max-open-seats"), o.MaxOpenSeats))
	}
	if api {
		errs = append(errs, app.RequireOptions(map[string]string{"token-key": o.TokenKey}),
			app.CheckSecret("token-key", o.TokenKey, 32), o.Ops.Check(o.TokenKey))
	}
	return app.JoinErrors(errs...)
}

// open returns a process with bookings and the operators' API, which is connected to its servers.
func (o *options) open(ctx context.Context, cfg app.Config, log *slog.Logger) (p *app.Process, err error) {
	b, err := app.Connect(ctx, cfg, log)
	if err != nil {
		return nil, err
	}
	defer b.CloseOnError(&err)
	expire, err := app.NewKind(b, expireKind, rows, delay.WorkerConfig{})
	if err != nil {
		return nil, err
	}
	bookings, err := part(b, expire, o)
	if err != nil {
		return nil, err
	}
	kinds, parts := app.Kinds{expire}, app.Parts{bookings}
	return app.New(b, kinds, append(parts, ops.Part(b, o.Ops, kinds, parts, nil))...)
}
