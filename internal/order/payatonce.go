package order

import (
	_ "embed"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/app"
	"example.com/shop/internal/rest"
)

//go:embed payatonce_openapi.yaml
var payAtOnceContract []byte

// PayAtOnceOptions say whether customers can pay an order at once. A customer who does that gets the goods for nothing. So a
// service with a payment provider offers it only if the option asks for it.
type PayAtOnceOptions struct {
	PayAtOnce      bool `name:"pay-at-once" help:"Let customers pay an order at once and for nothing, although the service has a payment provider: for demos and tests."`
	PayAtOnceQuiet bool `kong:"-"` // logs no warning about PayAtOnce: for a demo, whose user has not set it
}

// AddPayAtOnce lets the customers of a process pay orders at once, if no other package holds orders while their customers
// pay them elsewhere, or if the options ask for it. Call it after [Service.HoldBy].
func AddPayAtOnce(p *app.Process, o PayAtOnceOptions, s *Service, customers *rest.Tokens) {
	held := s.holdKind != ""
	if held && !o.PayAtOnce {
		return
	}
	p.Routes(func(root, _ gin.IRouter) {
		s.PayAtOnceRoutes(root, customers)
		if held && !o.PayAtOnceQuiet {
			p.Log.Warn("customers can pay orders at once, for nothing: unset SHOP_PAY_AT_ONCE unless this is a demo or a test")
		}
	})
	p.Contract(payAtOnceContract)
}

// PayAtOnceRoutes adds the route with which a customer pays an order at once, and makes the service show the orders that
// can be paid so. Without it, there is no such route. Call it before the service is used.
func (s *Service) PayAtOnceRoutes(r gin.IRouter, tokens *rest.Tokens) {
	a := &api{orders: s, tokens: tokens}
	r.POST("/api/orders/:id/pay", tokens.Authenticate(), rest.Parameters(), rest.Handle(a.pay))
	s.payAtOnce = true
}
