package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/rest"
)

//go:embed openapi.yaml
var openAPI []byte

// opsRoutes adds the operators' API.
func (a *app) opsRoutes(r gin.IRouter) {
	r.Match(rest.ReadMethods, "/stats", rest.Parameters(), rest.Handle(a.stats))
	bare := r.Group("", rest.Parameters(), rest.Handle(rest.RequireEmptyBody))
	bare.POST("/reconcile", rest.Handle(a.sweep))
	r.Match(rest.ReadMethods, "/dead-letters", rest.Parameters("limit", "cursor"), rest.Handle(a.deadLetters))
	bare.POST("/dead-letters/:kind/:id/redrive", rest.Handle(a.redrive))
	bare.POST("/products/:id/close-sale", rest.Handle(a.closeSale))
}

// requireOps rejects requests without the operators' token. It compares hashes, so that the duration of the comparison
// discloses neither a part of the token nor its length.
func requireOps(token string) gin.HandlerFunc {
	want := sha256.Sum256([]byte(token))
	return rest.Handle(func(c *gin.Context) error {
		scheme, sent, _ := strings.Cut(c.GetHeader("Authorization"), " ")
		got := sha256.Sum256([]byte(sent))
		if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			return rest.Unauthorized.Errorf("The request needs the operators' token, SHOP_OPS_TOKEN: send it as Authorization: Bearer.")
		}
		return nil
	})
}

// stats is the answer of GET /ops/api/stats. See openapi.yaml.
type stats struct {
	Redis      string            `json:"redis"`
	Queue      *queueStats       `json:"queue"`
	Orders     order.Backlog     `json:"orders"`
	Outbox     outboxStats       `json:"outbox"`
	Lateness   order.Lateness    `json:"lateness"`
	LastSweep  *reconcile.Report `json:"last_sweep"`
	Violations []order.Violation `json:"violations"`
}

type queueStats struct {
	Scheduled int64   `json:"scheduled"`
	Due       int64   `json:"due"`
	Leased    int64   `json:"leased"`
	Dead      int64   `json:"dead"`
	OldestDue float64 `json:"oldest_due_seconds"`
}

type outboxStats struct {
	Backlog int64   `json:"backlog"`
	Oldest  float64 `json:"oldest_seconds"`
}

func (a *app) stats(c *gin.Context) error {
	ctx := c.Request.Context()
	s := stats{Redis: "down"}
	if d, err := a.queueDepth(ctx); err == nil {
		s.Redis = "up"
		s.Queue = &queueStats{d.Scheduled, d.Due, d.Leased, d.Dead, d.OldestDue.Seconds()}
	}
	count, oldest, outboxErr := a.kinds.backlog(ctx)
	s.Outbox = outboxStats{count, oldest.Seconds()}
	var ordersErr, latenessErr, sweepErr error
	s.Orders, ordersErr = a.store.Backlog(ctx)
	s.Lateness, latenessErr = a.store.Lateness(ctx)
	s.LastSweep, sweepErr = a.kinds.lastSweep(ctx)
	if err := errors.Join(outboxErr, ordersErr, latenessErr, sweepErr); err != nil {
		return err
	}
	s.Violations = a.violationsNow(ctx)
	c.JSON(http.StatusOK, s)
	return nil
}

// violationsNow returns the violations of the invariants, or nil if the check fails or takes more than a second. The
// limit is needed because the check reads every order, and the operators' page requests it again and again. `shop
// doctor` has no such limit.
func (a *app) violationsNow(ctx context.Context) []order.Violation {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	violations, err := a.violations(ctx)
	if err != nil {
		return nil
	}
	return violations
}

// violations returns the violations of the invariants.
func (a *app) violations(ctx context.Context) ([]order.Violation, error) {
	all, err := a.store.Invariants(ctx, a.kinds.bound())
	all, err = a.addPaymentViolations(ctx, all, err)
	return all, err
}

// queueDepth waits at most a second for Redis. When Redis does not answer, operators need the other figures most.
func (a *app) queueDepth(ctx context.Context) (delay.Depth, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return a.kinds.depth(ctx)
}

// extendDeadline allows a request to take longer than other requests: up to limit. It returns a context that ends after
// this time. The context does not end when the operator closes the connection.
func extendDeadline(c *gin.Context, limit time.Duration) (context.Context, context.CancelFunc, error) {
	if err := http.NewResponseController(c.Writer).SetWriteDeadline(time.Now().Add(limit + time.Second)); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request.Context()), limit)
	return ctx, cancel, nil
}

// sweepTime limits a sweep that an operator requests. A sweep of all pending orders takes longer than other requests.
const sweepTime = time.Minute

// sweep compares the orders with the queue now, and answers with the report.
func (a *app) sweep(c *gin.Context) error {
	ctx, cancel, err := extendDeadline(c, sweepTime)
	if err != nil {
		return err
	}
	defer cancel()
	report, err := a.kinds.sweep(ctx)
	if errors.Is(err, reconcile.ErrBusy) {
		return rest.Busy.Errorf("A sweep is under way in this or another process. Repeat the request when it is done.")
	}
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, report)
	return nil
}

// closeSale brings the deadlines of a product's pending orders forward. It reads all pending orders, as a sweep may do.
func (a *app) closeSale(c *gin.Context) error {
	product, err := rest.PathID(c, "a product")
	if err != nil {
		return err
	}
	ctx, cancel, err := extendDeadline(c, sweepTime)
	if err != nil {
		return err
	}
	defer cancel()
	closed, err := a.orders.CloseSale(ctx, product)
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, closed)
	return nil
}

func (a *app) deadLetters(c *gin.Context) error {
	limit, limitErrs := rest.Limit(c)
	offset, cursorErrs := rest.QueryInt(c, "cursor", 0, 0, 1_000_000)
	if errs := slices.Concat(limitErrs, cursorErrs); len(errs) > 0 {
		return rest.MalformedRequest(errs...)
	}
	letters, err := a.kinds.deadLetters(c.Request.Context(), offset, limit+1) // one more shows that there is a next page
	if err != nil {
		return redisDown(err)
	}
	page := rest.ListPage[delay.DeadLetter]{Items: []delay.DeadLetter{}}
	if len(letters) > limit {
		next := strconv.Itoa(offset + limit)
		page.NextCursor = &next
		letters = letters[:limit]
	}
	page.Items = append(page.Items, letters...)
	c.JSON(http.StatusOK, page)
	return nil
}

func (a *app) redrive(c *gin.Context) error {
	kind, id := c.Param("kind"), c.Param("id")
	found, err := a.kinds.redrive(c.Request.Context(), kind, id)
	if err != nil {
		return redisDown(err)
	}
	if !found {
		return rest.NotFound.Errorf("There is no dead letter of the kind %s with the id %s.", kind, id)
	}
	c.Status(http.StatusNoContent)
	return nil
}

func redisDown(err error) error {
	return &rest.Error{Kind: rest.Unavailable, Detail: "Redis, which stores the dead letters, does not answer. Repeat the request when Redis is back.", Err: err}
}
