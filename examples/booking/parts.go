package main

import (
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/shop/examples/booking/migrations"
	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/ops"
	"example.com/shop/internal/rest"
)

// options are the options of bookings and of the operators' API.
type options struct {
	Timeout       time.Duration `name:"timeout" default:"5m" help:"The time to confirm a booking."`
	MaxOpenPlaces int64         `name:"max-open-places" default:"10" help:"The most places that a customer can have in bookings that are not confirmed."`

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
	if o.MaxOpenPlaces < 1 {
		errs = append(errs, fmt.Errorf("%s is %d, want at least 1", app.OptionName("max-open-places"), o.MaxOpenPlaces))
	}
	if api {
		errs = append(errs, app.RequireOptions(map[string]string{"token-key": o.TokenKey}),
			app.CheckSecret("token-key", o.TokenKey, 32), o.Ops.Check(o.TokenKey))
	}
	return app.JoinErrors(errs...)
}

var (
	//go:embed openapi.yaml
	contract []byte
	//go:embed invariants.sql
	invariantsSQL string
)

// open returns a process with bookings and the operators' API, which is connected to its servers.
func (o *options) open(ctx context.Context, cfg app.Config, log *slog.Logger) (p *app.Process, err error) {
	b, err := app.Connect(ctx, cfg, log, migrations.Set)
	if err != nil {
		return nil, err
	}
	defer b.CloseOnError(&err)
	expire, err := app.NewKind(b, expireKind, rows, delay.WorkerConfig{})
	if err != nil {
		return nil, err
	}
	code, err := app.NewKind(b, codeKind, codes(b.DB, logMessage(log), log), delay.WorkerConfig{Batch: codesAtOnce})
	if err != nil {
		return nil, err
	}
	var customers *rest.Tokens // nil: the process does not serve the API
	if b.Has(app.API) {
		customers, err = rest.NewTokens(rest.TokenConfig{
			Key: []byte(o.TokenKey), Issuer: "booking", Audience: "booking-customers",
			Cookie: "booking_token", CookiePath: "/api", SignUp: "sign up with POST " + signUpPath,
		})
		if err != nil {
			return nil, app.Usage(err)
		}
	}
	bookings := newService(b.DB, o, expire.Publisher, code.Publisher)
	kinds, parts := app.Kinds{expire, code}, app.Parts{{
		Contract: [][]byte{contract, rest.CustomerContract},
		Routes:   func(root, _ gin.IRouter) { addRoutes(root, customers, bookings) },
		Relations: []string{
			"courses", "courses_begins_at", "bookings_idempotency_key", "bookings_pending_deadline", "bookings_code_due",
			"bookings_open", "bookings_taken",
		},
		Checks: []app.Check{{
			Subject: "codes", Run: func(context.Context) error {
				return app.Warning("they are written to the log, whose readers can confirm all bookings: give the program a sender")
			},
		}},
		Invariants: func(ctx context.Context, bound time.Duration, full bool) ([]app.Violation, error) {
			return app.FindViolations(ctx, b.DB, full, invariantsSQL, bound.Microseconds(), full)
		},
	}}
	return app.New(b, kinds, append(parts, ops.Part(b, o.Ops, kinds, parts, nil))...)
}
