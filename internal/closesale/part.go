package closesale

import (
	_ "embed"
	"net/http"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/app"
	"example.com/shop/internal/rest"
)

//go:embed openapi.yaml
var contract []byte

// Add adds the operators' route that closes the sale of a product to a process.
func Add(p *app.Process, orders Orders) {
	s := NewService(NewStore(p.DB), orders, p.Metrics)
	p.Add(app.Part{
		Contract: [][]byte{contract},
		Routes: func(_, ops gin.IRouter) {
			ops.POST("/products/:id/close-sale", rest.Parameters(), rest.Handle(rest.RequireEmptyBody), rest.Handle(s.answer))
		},
	})
}

// answer is the handler of POST /ops/api/products/{id}/close-sale. It reads all pending orders, as a sweep may do.
func (s *Service) answer(c *gin.Context) error {
	product, err := rest.PathID(c, "a product")
	if err != nil {
		return err
	}
	ctx, cancel, err := rest.ExtendDeadline(c, rest.LongRequest)
	if err != nil {
		return err
	}
	defer cancel()
	closed, err := s.CloseSale(ctx, product)
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, closed)
	return nil
}
