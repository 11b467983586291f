// Package ops serves the operators' API: the figures, the dead letters, where a row is, and sweeps on request. The
// API needs a token of its own. Other parts add routes to it.
package ops

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/rest"
)

//go:embed openapi.yaml
var contract []byte

// Options are the options of the operators' API.
type Options struct {
	OpsToken     string `name:"ops-token" placeholder:"SECRET" help:"The token for the operators' API, at least 16 bytes."`
	OpsTokenFile string `name:"ops-token-file" placeholder:"FILE" help:"The file with the operators' token, instead of --ops-token."`
}

// Check returns an error if the token is missing, is easy to guess, equals tokenKey, which signs the customers'
// tokens, or has a character that a request cannot carry.
func (o Options) Check(tokenKey string) error {
	name := app.OptionName("ops-token")
	errs := []error{
		app.RequireOptions(map[string]string{"ops-token": o.OpsToken}), app.CheckSecret("ops-token", o.OpsToken, 16),
	}
	if o.OpsToken != "" && o.OpsToken == tokenKey {
		// Operators send their token over the network, so an eavesdropper would learn the token key, and could sign a
		// token for any customer.
		errs = append(errs, fmt.Errorf("%s is the same as %s: set two different random values, "+
			"for example from `openssl rand -hex 32`", name, app.OptionName("token-key")))
	}
	if strings.ContainsFunc(o.OpsToken, func(r rune) bool { return r < ' ' || r > '~' }) {
		errs = append(errs, fmt.Errorf("%s contains a character that an Authorization header cannot carry: "+
			"use only printable ASCII characters", name))
	}
	return app.JoinErrors(errs...)
}

// Part is the operators' API of a process with some kinds of task, the first of which is the one whose schedule the API
// shows. The API shows the figures and the invariants of parts. find may be nil: then no route says where a row is.
func Part(b *app.Base, o Options, kinds app.Kinds, parts app.Parts, find Find) app.Part {
	check := func(ctx context.Context, full bool) ([]app.Violation, error) {
		return parts.Violations(ctx, kinds.Bound(), full)
	}
	a := &api{base: b, kinds: kinds, parts: parts, find: find, invariants: &checker{check: check, log: b.Log}}
	part := app.Part{Contract: [][]byte{contract}, Guard: o.guard(), Routes: a.routes}
	if find != nil {
		part.Contract = append(part.Contract, whereContract)
	}
	return part
}

func (a *api) routes(_, ops gin.IRouter) {
	ops.Match(rest.ReadMethods, "/stats", rest.Parameters(), rest.Handle(a.stats))
	ops.Match(rest.ReadMethods, "/schedule", rest.Parameters(), rest.Handle(a.schedule))
	ops.Match(rest.ReadMethods, "/dead-letters", rest.Parameters(), rest.Handle(a.deadLetters))
	bare := ops.Group("", rest.Parameters(), rest.Handle(rest.RequireEmptyBody))
	bare.POST("/reconcile", rest.Handle(a.sweep))
	bare.POST("/dead-letters/:kind/:id/redrive", rest.Handle(a.redrive))
	if a.find != nil {
		ops.Match(rest.ReadMethods, "/where", rest.Parameters("id"), whereIs(a.kinds, a.find))
	}
}

// guard returns the handler that rejects requests without the operators' token. It compares hashes, so that the
// duration of the comparison discloses neither a part of the token nor its length. Without a token guard returns nil,
// because the header "Authorization: Bearer" alone would be accepted; then there is no operators' API.
func (o Options) guard() gin.HandlerFunc {
	if o.OpsToken == "" {
		return nil
	}
	want := sha256.Sum256([]byte(o.OpsToken))
	return rest.Handle(func(c *gin.Context) error {
		scheme, sent, _ := strings.Cut(c.GetHeader("Authorization"), " ")
		got := sha256.Sum256([]byte(sent))
		if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			return rest.Unauthorized.Errorf("The request needs the operators' token, %s_OPS_TOKEN, "+
				"as Authorization: Bearer. It has none, or another one.", app.EnvPrefix)
		}
		return nil
	})
}

type api struct {
	base       *app.Base
	kinds      app.Kinds
	parts      app.Parts
	find       Find
	invariants *checker
}

func (a *api) stats(c *gin.Context) error {
	ctx := c.Request.Context()
	s := gin.H{"redis": "down", "queue": nil}
	limited, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	if d, err := depthOf(limited, a.kinds); err == nil {
		s["redis"] = "up"
		s["queue"] = gin.H{
			"scheduled": d.Scheduled, "due": d.Due, "leased": d.Leased, "dead": d.Dead,
			"oldest_due_seconds": d.OldestDue.Seconds(),
		}
	}
	count, oldest, outboxErr := backlogOf(ctx, a.kinds)
	s["outbox"] = gin.H{"backlog": count, "oldest_seconds": oldest.Seconds()}
	lastSweep, sweepErr := lastSweepOf(ctx, a.kinds)
	s["last_sweep"] = lastSweep
	figures, figuresErr := readFigures(ctx, a.base.Pool, a.parts)
	if err := errors.Join(outboxErr, sweepErr, figuresErr); err != nil {
		return err
	}
	maps.Copy(s, figures)
	invariants := a.invariants.result(ctx)
	s["violations"], s["invariants_checked_at"] = invariants.violations, invariants.at
	c.JSON(http.StatusOK, s)
	return nil
}

func (a *api) schedule(c *gin.Context) error {
	s, err := readSchedule(c.Request.Context(), a.base.DB, a.kinds[0], redisTimeout)
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, s)
	return nil
}

func (a *api) sweep(c *gin.Context) error {
	ctx, cancel := rest.ExtendDeadline(c, time.Minute) // a sweep may read all pending rows
	defer cancel()
	report, err := a.kinds.Sweep(ctx)
	if errors.Is(err, reconcile.ErrSweeping) {
		return rest.Busy.Errorf("A sweep is under way in this or another process. Repeat the request when it is done.")
	}
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, report)
	return nil
}

const maxDeadLetters = 100 // in an answer; a redrive of some makes room for older ones

func (a *api) deadLetters(c *gin.Context) error {
	letters, err := deadLettersOf(c.Request.Context(), a.kinds, maxDeadLetters)
	if err != nil {
		return redisDown(err)
	}
	c.JSON(http.StatusOK, rest.List[delay.DeadLetter]{Items: letters})
	return nil
}

func (a *api) redrive(c *gin.Context) error {
	kind, id := c.Param("kind"), c.Param("id")
	found, err := redrive(c.Request.Context(), a.kinds, kind, id)
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
	return &rest.Error{Class: rest.Unavailable, Detail: "Redis, which stores the dead letters, does not answer. " +
		"Repeat the request when Redis is back.", Err: err}
}
