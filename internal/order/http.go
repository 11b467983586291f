package order

import (
	"context"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"
)

// tokenCookie carries the token of a customer who uses a browser. Scripts cannot read it, other sites
// cannot have it sent.
const tokenCookie = "shop_token"

// api answers customers over HTTP.
type api struct {
	orders *Service
	tokens *Tokens
	feed   *Feed
}

// Reading are the methods of a route that changes nothing. The server sends no body in answer to HEAD.
var Reading = []string{http.MethodGet, http.MethodHead}

// Routes adds the customers' API below /api. Requests that carry the cookie are only safe from other
// sites behind [http.CrossOriginProtection].
func (s *Service) Routes(r gin.IRouter, tokens *Tokens, feed *Feed) {
	a := &api{orders: s, tokens: tokens, feed: feed}
	open := r.Group("/api")
	open.POST("/customers", Parameters(), Handle(a.signUp))
	open.Match(Reading, "/products", Parameters(), Handle(a.products))

	r.Match(Reading, StreamPath, Parameters(), Handle(a.authenticate), Handle(a.stream))

	own := open.Group("/orders", Handle(a.authenticate))
	own.POST("", Parameters(), Handle(a.place))
	own.Match(Reading, "", Parameters("limit", "cursor"), Handle(a.list))
	own.Match(Reading, "/:id", Parameters(), Handle(a.get))
	own.Match(Reading, "/:id/events", Parameters(), Handle(a.events))
	own.POST("/:id/pay", Parameters(), Handle(a.pay))
	own.POST("/:id/cancel", Parameters(), Handle(a.cancel))
}

// authenticate finds out who asks. A bearer token goes before the cookie.
func (a *api) authenticate(c *gin.Context) error {
	scheme, token, _ := strings.Cut(c.GetHeader("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") { // others may be for a proxy
		token, _ = c.Cookie(tokenCookie)
	}
	token = strings.TrimSpace(token)
	if token == "" {
		return Errorf(CodeUnauthorized, "This needs a customer's token: sign up with POST /api/customers and send it as Authorization: Bearer.")
	}
	customer, err := a.tokens.Customer(token)
	if err != nil {
		return &Error{Code: CodeUnauthorized, Detail: "The token is not valid, or not any more: sign up again.", Err: err}
	}
	c.Set(customerKey, customer)
	return nil
}

// customer is who asks, behind authenticate.
func customer(c *gin.Context) uuid.UUID { return c.MustGet(customerKey).(uuid.UUID) }

func (a *api) signUp(c *gin.Context) error {
	if err := ReadNothing(c); err != nil {
		return err
	}
	id := a.orders.SignUp()
	token, err := a.tokens.Issue(id)
	if err != nil {
		return err
	}
	http.SetCookie(c.Writer, &http.Cookie{
		Name: tokenCookie, Value: token, Path: "/api", MaxAge: int(tokenLife.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: c.Request.TLS != nil || strings.EqualFold(c.GetHeader("X-Forwarded-Proto"), "https"),
	})
	c.JSON(http.StatusCreated, signUpAnswer{CustomerID: id, Token: token})
	return nil
}

type signUpAnswer struct {
	CustomerID uuid.UUID `json:"customer_id"`
	Token      string    `json:"token"`
}

// items is the answer with a list that has one page.
type items[T any] struct {
	Items []T `json:"items"`
}

func (a *api) products(c *gin.Context) error {
	products, err := a.orders.Products(c.Request.Context())
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, items[Product]{products})
	return nil
}

func (a *api) place(c *gin.Context) error {
	placement, err := readPlacement(c)
	if err != nil {
		return err
	}
	o, replayed, err := a.orders.Place(c.Request.Context(), customer(c), placement)
	if err != nil {
		return err
	}
	c.Set(orderIDKey, o.ID.String())
	c.Header("Location", "/api/orders/"+o.ID.String())
	status := http.StatusCreated
	if replayed {
		status = http.StatusOK
	}
	c.JSON(status, o)
	return nil
}

func (a *api) list(c *gin.Context) error {
	page, err := readPage(c)
	if err != nil {
		return err
	}
	orders, next, err := a.orders.List(c.Request.Context(), customer(c), page.after, page.limit)
	if err != nil {
		return err
	}
	answer := orderPage{Items: orders}
	if next != nil {
		text := next.String()
		answer.NextCursor = &text
	}
	c.JSON(http.StatusOK, answer)
	return nil
}

type orderPage struct {
	Items      []Order `json:"items"`
	NextCursor *string `json:"next_cursor"` // null on the last page
}

func (a *api) get(c *gin.Context) error {
	return a.answer(c, a.orders.Get)
}

func (a *api) pay(c *gin.Context) error {
	if err := ReadNothing(c); err != nil {
		return err
	}
	return a.answer(c, a.orders.Pay)
}

func (a *api) cancel(c *gin.Context) error {
	if err := ReadNothing(c); err != nil {
		return err
	}
	return a.answer(c, a.orders.Cancel)
}

// answer answers with an order of the path, after something was done with it.
func (a *api) answer(c *gin.Context, do func(ctx context.Context, customer, id uuid.UUID) (*Order, error)) error {
	id, err := readOrderID(c)
	if err != nil {
		return err
	}
	o, err := do(c.Request.Context(), customer(c), id)
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, o)
	return nil
}

func (a *api) events(c *gin.Context) error {
	id, err := readOrderID(c)
	if err != nil {
		return err
	}
	events, err := a.orders.Events(c.Request.Context(), customer(c), id)
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, items[Event]{events})
	return nil
}
