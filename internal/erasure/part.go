package erasure

import (
	_ "embed"
	"net/http"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/app"
	"example.com/shop/internal/rest"
)

//go:embed openapi.yaml
var contract []byte

// Add adds the operators' route that erases a customer, and the job that completes the requests, to a process.
func Add(p *app.Process, orders Orders) {
	s := NewService(p.DB, orders, p.Log)
	p.Add(app.Part{
		Contract: [][]byte{contract},
		Routes: func(_, ops gin.IRouter) {
			ops.POST("/customers/:id/erase", rest.Parameters(), rest.Handle(rest.RequireEmptyBody), rest.Handle(s.answer))
		},
		Components: []app.Component{{Role: app.Reconciler, Run: s.Run}},
	})
}

// answer is the handler of POST /ops/api/customers/{id}/erase. A customer may have thousands of orders.
func (s *Service) answer(c *gin.Context) error {
	customer, err := rest.PathID(c, "a customer")
	if err != nil {
		return err
	}
	ctx, cancel, err := rest.ExtendDeadline(c, rest.LongRequest)
	if err != nil {
		return err
	}
	defer cancel()
	erasure, err := s.Erase(ctx, customer)
	if err != nil {
		return rest.OutcomeUnknown(err, "The request is repeated every minute if it was stored. Repeat it, to be sure.")
	}
	c.JSON(http.StatusOK, erasure)
	return nil
}
