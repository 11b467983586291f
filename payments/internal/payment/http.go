package payment

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/payments/internal/attempt"
)

// customerRoutes adds the customers' API below /api.
func customerRoutes(root gin.IRouter, tokens *rest.Tokens, attempts *attempt.Service) {
	a := &api{attempts}
	own := root.Group("/api", tokens.Authenticate())
	noBody := rest.Handle(rest.RequireEmptyBody)
	own.POST("/orders/:id/payments", rest.Parameters(), noBody, rest.Handle(a.open))
	own.POST("/orders/:id/payments/close", rest.Parameters(), noBody, rest.Handle(a.close))
	own.POST("/orders/:id/payments/returned", rest.Parameters(), noBody, rest.Handle(a.returned))
	own.Match(rest.ReadMethods, "/orders/:id/payments", rest.Parameters(), rest.Handle(a.ofOrder))
	own.Match(rest.ReadMethods, "/payments", rest.Parameters("limit", "cursor"), rest.Handle(a.list))
}

// api has the handlers of the customers' API.
type api struct{ attempts *attempt.Service }

func (a *api) open(c *gin.Context) error {
	id, err := order.ReadID(c)
	if err != nil {
		return err
	}
	live, opened, err := a.attempts.Open(c.Request.Context(), rest.Customer(c), id)
	if err != nil {
		return retryLater(c, err)
	}
	status := http.StatusOK
	if opened {
		status = http.StatusCreated
	}
	c.JSON(status, live)
	return nil
}

// retryLater tells when to repeat a request that the provider has not answered.
func retryLater(c *gin.Context, err error) error {
	if rest.AsError(err).Class == attempt.ProviderAway {
		c.Header("Retry-After", "1")
	}
	return err
}

func (a *api) close(c *gin.Context) error {
	id, err := order.ReadID(c)
	if err != nil {
		return err
	}
	if err := a.attempts.Close(c.Request.Context(), rest.Customer(c), id); err != nil {
		return retryLater(c, err)
	}
	return a.ofOrder(c)
}

func (a *api) returned(c *gin.Context) error {
	id, err := order.ReadID(c)
	if err != nil {
		return err
	}
	if err := a.attempts.Returned(c.Request.Context(), rest.Customer(c), id); err != nil {
		return err
	}
	c.Status(http.StatusAccepted)
	return nil
}

func (a *api) ofOrder(c *gin.Context) error {
	id, err := order.ReadID(c)
	if err != nil {
		return err
	}
	attempts, err := a.attempts.OfOrder(c.Request.Context(), rest.Customer(c), id)
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, rest.List[attempt.Attempt]{Items: attempts})
	return nil
}

func (a *api) list(c *gin.Context) error {
	page, err := rest.ReadPage(c)
	if err != nil {
		return err
	}
	attempts, next, err := a.attempts.List(c.Request.Context(), rest.Customer(c), page)
	if err != nil {
		return err
	}
	answer := rest.ListPage[attempt.Attempt]{Items: attempts}
	if next != nil {
		text := next.String()
		answer.NextCursor = &text
	}
	c.JSON(http.StatusOK, answer)
	return nil
}
