package order

import (
	_ "embed"
	"fmt"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/app"
	"example.com/shop/internal/rest"
)

//go:embed openapi.yaml
var contract []byte

//go:embed payatonce_openapi.yaml
var payAtOnceContract []byte

// Options are the options of orders.
type Options struct {
	OrderTimeout   time.Duration `name:"order-timeout" default:"30m" help:"The time that a customer has to pay an order."`
	OrderExtension time.Duration `name:"order-extension" default:"0s" help:"The time by which a customer can extend the deadline of an order. 0s: not at all."`
	MaxExtensions  int64         `name:"max-extensions" default:"10" help:"How often a customer can extend the deadline of an order."`

	Bounds
}

// Bounds are the options that bound what one customer can order without paying it.
type Bounds struct {
	MaxOpenOrders int64 `name:"max-open-orders" default:"10" help:"The most orders that a customer can have without having paid them. 0: no bound."`
	MaxOpenUnits  int64 `name:"max-open-units" default:"20" help:"The most units of a product in the orders that a customer has not paid. 0: no bound."`
}

// The bounds of what the options accept. What is beyond them is probably a mistake.
const (
	maxTimeout    = 30 * 24 * time.Hour // of the time to pay and of an extension, because the stock stays reserved
	maxExtensions = 1000                // of an order
)

// Check returns one error that names all options with wrong values.
func (o Options) Check() error {
	errs := []error{checkBound("max-open-orders", o.MaxOpenOrders), checkBound("max-open-units", o.MaxOpenUnits)}
	if o.OrderTimeout < time.Second || o.OrderTimeout > maxTimeout {
		errs = append(errs, fmt.Errorf("%s is %v, want 1s to 720h", app.OptionName("order-timeout"), o.OrderTimeout))
	}
	if o.OrderExtension < 0 || o.OrderExtension > maxTimeout {
		errs = append(errs, fmt.Errorf("%s is %v, want 0s to 720h", app.OptionName("order-extension"), o.OrderExtension))
	}
	if o.MaxExtensions < 0 || o.MaxExtensions > maxExtensions || o.MaxExtensions == 0 && o.OrderExtension > 0 {
		errs = append(errs, fmt.Errorf("%s is %d, want 1 to %d; without extensions set %s to 0s",
			app.OptionName("max-extensions"), o.MaxExtensions, maxExtensions, app.OptionName("order-extension")))
	}
	return app.JoinErrors(errs...)
}

func checkBound(flag string, bound int64) error {
	if bound < 0 {
		return fmt.Errorf("%s is %d, want at least 1, or 0 for no bound", app.OptionName(flag), bound)
	}
	return nil
}

// Part is what orders add to a process: the APIs of customers and operators, the booker, the invariants and the figures.
func (s *Service) Part(customers *rest.Tokens) app.Part {
	part := app.Part{
		Contract: [][]byte{contract, rest.CustomerContract},
		Routes: func(root, ops gin.IRouter) {
			s.Routes(root, customers)
			s.OpsRoutes(ops)
		},
		Wrap: s.Shed,

		Components: []app.Component{{Role: app.Reconciler, Run: s.keepBooks}},

		Relations:  []string{"orders_idempotency_key", "orders_pending_deadline", "orders_not_booked"},
		Invariants: s.store.Invariants,
		Figures:    figures(),
	}
	if !s.cfg.NoPayAtOnce {
		part.Contract = append(part.Contract, payAtOnceContract)
	}
	return part
}
