package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/reconcile"
)

//go:embed openapi.yaml
var openAPI []byte

// opsRoutes adds the operators' API.
func (a *app) opsRoutes(r gin.IRouter, faults *faults) {
	r.Match(order.Reading, "/stats", order.Parameters(), order.Handle(func(c *gin.Context) error { return a.stats(c, faults) }))
	bare := r.Group("", order.Parameters(), order.Handle(order.ReadNothing))
	bare.POST("/reconcile", order.Handle(a.sweep))
	r.Match(order.Reading, "/dead-letters", order.Parameters("limit", "cursor"), order.Handle(a.deadLetters))
	bare.POST("/dead-letters/:kind/:id/redrive", order.Handle(a.redrive))
	if faults != nil {
		bare.POST("/faults/:fault", order.Handle(faults.inject))
		bare.POST("/faults/place-orders", order.Handle(faults.placeOrders))
	}
}

// requireOps lets through who shows the operators' token. The hashes are compared, so that neither time
// nor length tells anything of it.
func requireOps(token string) gin.HandlerFunc {
	want := sha256.Sum256([]byte(token))
	return order.Handle(func(c *gin.Context) error {
		scheme, shown, _ := strings.Cut(c.GetHeader("Authorization"), " ")
		got := sha256.Sum256([]byte(shown))
		if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			return order.Errorf(order.CodeUnauthorized, "This needs the operators' token, SHOP_OPS_TOKEN, sent as Authorization: Bearer.")
		}
		return nil
	})
}

// stats is what an operator asks first. See openapi.yaml.
type stats struct {
	Redis      string            `json:"redis"`
	Queue      *queueStats       `json:"queue"`
	Orders     order.Backlog     `json:"orders"`
	Outbox     outboxStats       `json:"outbox"`
	Lateness   order.Lateness    `json:"lateness"`
	LastSweep  *reconcile.Report `json:"last_sweep"`
	Violations []order.Violation `json:"violations"`
	Faults     *faultState       `json:"faults"`
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

func (a *app) stats(c *gin.Context, faults *faults) error {
	ctx := c.Request.Context()
	s := stats{Redis: "down", Faults: faults.state()}
	if d, err := a.depth(ctx); err == nil {
		s.Redis = "up"
		s.Queue = &queueStats{d.Scheduled, d.Due, d.Leased, d.Dead, d.OldestDue.Seconds()}
	}
	count, oldest, outboxErr := a.outbox.Backlog(ctx)
	s.Outbox = outboxStats{count, oldest.Seconds()}
	var ordersErr, latenessErr, sweepErr error
	s.Orders, ordersErr = a.store.Backlog(ctx)
	s.Lateness, latenessErr = a.store.Lateness(ctx)
	s.LastSweep, sweepErr = a.reconciler.Last(ctx)
	if err := errors.Join(outboxErr, ordersErr, latenessErr, sweepErr); err != nil {
		return err
	}
	s.Violations = a.violations(ctx)
	c.JSON(http.StatusOK, s)
	return nil
}

// violations checks the invariants, which reads every order: nil if that takes longer than a page that
// refreshes itself should ask of a database. `shop doctor` takes the time.
func (a *app) violations(ctx context.Context) []order.Violation {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	violations, err := a.store.Invariants(ctx, a.reconciler.Bound())
	if err != nil {
		return nil
	}
	return violations
}

// depth asks Redis, and gives up soon: the answer is wanted most when Redis is in trouble.
func (a *app) depth(ctx context.Context) (delay.Depth, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return a.queue.Depth(ctx)
}

// unhurried lets a request take more time than others, and go on if the operator hangs up.
func unhurried(c *gin.Context, most time.Duration) (context.Context, context.CancelFunc, error) {
	if err := http.NewResponseController(c.Writer).SetWriteDeadline(time.Now().Add(most + time.Second)); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request.Context()), most)
	return ctx, cancel, nil
}

// sweepTime is what an operator waits for at most: a sweep over all orders is no matter of seconds alone.
const sweepTime = time.Minute

// sweep has the reconciler compare and repair now.
func (a *app) sweep(c *gin.Context) error {
	ctx, cancel, err := unhurried(c, sweepTime)
	if err != nil {
		return err
	}
	defer cancel()
	report, err := a.reconciler.Sweep(ctx)
	if errors.Is(err, reconcile.ErrBusy) {
		return order.Errorf(order.CodeBusy, "A sweep is under way, here or in another process: ask again when it is done.")
	}
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, report)
	return nil
}

func (a *app) deadLetters(c *gin.Context) error {
	limit, limitErr := queryInt(c, "limit", 20, 1, 100)
	offset, cursorErr := queryInt(c, "cursor", 0, 0, 1_000_000)
	if err := errors.Join(limitErr, cursorErr); err != nil {
		return order.Errorf(order.CodeMalformed, "%s.", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	letters, err := a.queue.DeadLetters(c.Request.Context(), offset, limit+1) // one more tells if there is a next page
	if err != nil {
		return redisDown(err)
	}
	page := deadLetterPage{Items: []delay.DeadLetter{}}
	if len(letters) > limit {
		next := strconv.Itoa(offset + limit)
		page.NextCursor = &next
		letters = letters[:limit]
	}
	page.Items = append(page.Items, letters...)
	c.JSON(http.StatusOK, page)
	return nil
}

// queryInt reads a whole number from the query.
func queryInt(c *gin.Context, name string, absent, least, most int) (int, error) {
	text, given := c.GetQuery(name)
	if !given {
		return absent, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%s must be a whole number from %d to %d", name, least, most)
	}
	return n, nil
}

type deadLetterPage struct {
	Items      []delay.DeadLetter `json:"items"`
	NextCursor *string            `json:"next_cursor"` // null on the last page
}

func (a *app) redrive(c *gin.Context) error {
	kind, id := c.Param("kind"), c.Param("id")
	found := false
	if kind == a.queue.Kind() {
		var err error
		if found, err = a.queue.Redrive(c.Request.Context(), id); err != nil {
			return redisDown(err)
		}
	}
	if !found {
		return order.Errorf(order.CodeNotFound, "There is no dead letter %s of the kind %s.", id, kind)
	}
	c.Status(http.StatusNoContent)
	return nil
}

func redisDown(err error) error {
	return &order.Error{Code: order.CodeUnavailable, Detail: "Redis, which keeps the dead letters, does not answer.", Err: err}
}
