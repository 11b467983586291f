package order

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/rest"
)

// Shed returns a handler that rejects placements while [Service.Admit] rejects them, and passes all other requests on
// to next. Put it before any middleware, because it costs little.
func (s *Service) Shed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && r.URL.Path == "/api/orders" {
			if err := s.Admit(); err != nil {
				rest.Reject(w, r, rest.AsError(err))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// Routes adds the customers' API below /api.
func (s *Service) Routes(r gin.IRouter, tokens *rest.Tokens) {
	open := r.Group("/api")
	open.POST("/customers", rest.Parameters(), rest.Handle(tokens.SignUp))
	open.Match(rest.ReadMethods, "/products", rest.Parameters(), rest.Handle(s.products))

	own := open.Group("/orders", tokens.Authenticate())
	own.POST("", rest.Parameters(), rest.Handle(s.place))
	own.Match(rest.ReadMethods, "", rest.Parameters("limit", "cursor"), rest.Handle(s.list))
	own.Match(rest.ReadMethods, "/:id", rest.Parameters(), rest.Handle(s.get))
	own.Match(rest.ReadMethods, "/:id/events", rest.Parameters(), rest.Handle(s.events))
	own.POST("/:id/cancel", rest.Parameters(), rest.Handle(act(s.Cancel)))
	own.POST("/:id/extend", rest.Parameters(), rest.Handle(act(s.Extend)))
	if !s.cfg.NoPayAtOnce {
		own.POST("/:id/pay", rest.Parameters(), rest.Handle(act(s.Pay)))
	}
}

func (s *Service) products(c *gin.Context) error {
	products, err := s.Products(c.Request.Context())
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, rest.List[Product]{Items: products})
	return nil
}

func (s *Service) place(c *gin.Context) error {
	placement, err := readPlacement(c)
	if err != nil {
		return err
	}
	placement.Span = s.cfg.SpanOf(c.Request.Context())
	o, replayed, err := s.Place(c.Request.Context(), rest.Customer(c), placement)
	if err != nil {
		return err
	}
	logOrder(c, o.ID)
	c.Header("Location", "/api/orders/"+o.ID.String())
	status := http.StatusCreated
	if replayed {
		status = http.StatusOK
	}
	c.JSON(status, o)
	return nil
}

func (s *Service) list(c *gin.Context) error {
	page, err := rest.ReadPage(c)
	if err != nil {
		return err
	}
	orders, next, err := s.List(c.Request.Context(), rest.Customer(c), page.After, page.Limit)
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, rest.ListPage[Order]{Items: orders, NextCursor: next})
	return nil
}

func (s *Service) get(c *gin.Context) error { return answer(c, s.Get) }

// action is what a customer does with one of their orders. It returns the order as it is afterwards.
type action func(ctx context.Context, customer, id uuid.UUID) (*Order, error)

// act returns the handler of an action for the order in the path.
func act(do action) func(*gin.Context) error {
	return func(c *gin.Context) error {
		if err := rest.RequireEmptyBody(c); err != nil {
			return err
		}
		return answer(c, do)
	}
}

// OpsRoutes adds the route with which operators move the deadline of an order.
func (s *Service) OpsRoutes(r gin.IRouter) {
	r.POST("/orders/:id/deadline", rest.Parameters(), rest.Handle(s.reschedule))
}

const maxReason = 500 // the largest length of an operator's reason, in characters

func (s *Service) reschedule(c *gin.Context) error {
	id, err := ReadID(c)
	if err != nil {
		return err
	}
	body, err := rest.ReadObject(c)
	if err != nil {
		return err
	}
	errs := body.UnknownFields("", "deadline", "reason")
	text, _ := body["deadline"].(string)
	deadline, err := time.Parse(time.RFC3339, strings.ToUpper(text)) // RFC 3339 allows the letters t and z, too
	if err != nil {
		errs = append(errs, rest.FieldError{
			Pointer: "/deadline", Detail: `must be a time with its zone, for example "2026-01-31T09:30:00Z"`,
		})
	}
	reason, wrong := body.Text("reason", maxReason)
	if errs = append(errs, wrong...); len(errs) > 0 {
		return rest.InvalidFields(errs...)
	}
	o, err := s.Reschedule(c.Request.Context(), id, deadline, reason)
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, o)
	return nil
}

// answer calls do for the order in the path, and answers with the order that do returns.
func answer(c *gin.Context, do action) error {
	id, err := ReadID(c)
	if err != nil {
		return err
	}
	o, err := do(c.Request.Context(), rest.Customer(c), id)
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, o)
	return nil
}

func (s *Service) events(c *gin.Context) error {
	id, err := ReadID(c)
	if err != nil {
		return err
	}
	events, err := s.Events(c.Request.Context(), rest.Customer(c), id)
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, rest.List[Event]{Items: events})
	return nil
}

// ReadID reads the order's id from the path, and logs it.
func ReadID(c *gin.Context) (uuid.UUID, error) {
	id, err := rest.PathID(c, "an order")
	if err == nil {
		logOrder(c, id)
	}
	return id, err
}

func logOrder(c *gin.Context, id uuid.UUID) { rest.AddLogAttr(c, slog.String("order_id", id.String())) }

// readPlacement reads a placement, and returns one error for all wrong fields. A field that is missing or has a wrong
// type stays zero, and [Placement.fieldErrors] reports it.
func readPlacement(c *gin.Context) (p Placement, err error) {
	if p.IdempotencyKey, err = rest.IdempotencyKey(c); err != nil {
		return p, err
	}
	body, err := rest.ReadObject(c)
	if err != nil {
		return p, err
	}
	errs := body.UnknownFields("", "items")
	items, _ := body["items"].([]any)
	p.Lines = make([]Line, len(items))
	for i, item := range items {
		fields, _ := item.(map[string]any)
		path := fmt.Sprintf("/items/%d", i)
		errs = append(errs, rest.Object(fields).UnknownFields(path, "product_id", "quantity")...)
		if id, ok := fields["product_id"].(string); ok {
			p.Lines[i].ProductID, _ = keyset.ParseID(id)
		}
		p.Lines[i].Quantity, _ = rest.Integer(fields["quantity"])
	}
	if errs = append(errs, p.fieldErrors()...); len(errs) > 0 {
		return p, rest.InvalidFields(errs...)
	}
	return p, nil
}
