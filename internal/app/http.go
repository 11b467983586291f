package app

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
)

// RequestTimeout limits the time of a request, except for [Part.Streams]. It is shorter than the time
// that [rest.Serve] gives a handler, so that the handler can answer with an error.
const RequestTimeout = 8 * time.Second

// ownContract is the piece of the OpenAPI document, the contract, about the routes of this package. It also has what
// the pieces of several parts refer to: problems, parameters of pages, and the operators' token.
//
//go:embed openapi.yaml
var ownContract []byte

// route makes the handler of all routes: the health checks and the metrics, which every process has, and in a process
// with the role API the routes of the parts and the OpenAPI document.
func (p *Process) route() error {
	sameOrigin, err := rest.SameOrigin(p.PublicURL)
	if err != nil {
		return err
	}
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.HandleMethodNotAllowed = true
	r.RedirectTrailingSlash = false // each path has one spelling
	isStream := func(route string) bool {
		return slices.ContainsFunc(p.Parts, func(part Part) bool { return slices.Contains(part.Streams, route) })
	}
	for _, part := range p.Parts {
		if part.First != nil {
			r.Use(func(c *gin.Context) {
				if !isStream(c.FullPath()) {
					part.First(c)
				}
			})
		}
	}
	r.Use(
		rest.RequestID(),
		rest.Measure(p.Metrics, isStream),
		rest.Log(p.Log, "/healthz", "/readyz", "/metrics"),
		rest.Recover(p.Log),
		rest.SecurityHeaders,
		sameOrigin,
		rest.Deadline(RequestTimeout, isStream),
	)
	r.NoRoute(rest.NoRoute)
	r.NoMethod(rest.NoMethod)
	r.Match(rest.ReadMethods, "/healthz", func(c *gin.Context) {
		c.JSON(http.StatusOK, gin.H{"status": "ok", "version": p.Version})
	})
	r.Match(rest.ReadMethods, "/readyz", p.answerReady)
	metrics := promhttp.HandlerFor(oncePerSecond(p.Registry), promhttp.HandlerOpts{})
	r.Match(rest.ReadMethods, "/metrics", gin.WrapH(metrics))
	if p.Has(API) {
		if err := p.routeParts(r); err != nil {
			return err
		}
	}
	p.handler = r
	for _, part := range p.Parts {
		if part.Wrap != nil {
			p.handler = part.Wrap(p.handler)
		}
	}
	return nil
}

// routeParts adds the routes of the parts, the operators' API behind its guard, and the OpenAPI document.
func (p *Process) routeParts(r *gin.Engine) error {
	guard := gin.HandlerFunc(func(c *gin.Context) {
		rest.NoRoute(c)
		c.Abort()
	})
	pieces, guarded := [][]byte{ownContract}, false
	for _, part := range p.Parts {
		if part.Guard != nil {
			if guarded {
				return errors.New("two parts have a guard of the operators' API, want one")
			}
			guard, guarded = part.Guard, true
		}
		pieces = append(pieces, part.Contract...)
	}
	contract, err := rest.MergeContracts(pieces...)
	if err != nil {
		return err
	}
	ops := r.Group("/ops/api", guard)
	for _, part := range p.Parts {
		if part.Routes != nil {
			part.Routes(r, ops)
		}
	}
	r.Match(rest.ReadMethods, "/openapi.yaml", func(c *gin.Context) {
		c.Data(http.StatusOK, "application/yaml", contract)
	})
	return nil
}

// Handler returns the handler of all routes.
func (p *Process) Handler() http.Handler { return p.handler }

// answerReady tells a load balancer whether to send requests to this process. Without Redis the process is degraded
// but ready, because it answers requests, and the reconcilers time out rows a little late. While commits wait for a
// standby, it is degraded but ready, because it still answers requests that change nothing. Without the database, or
// without its tables, the process is not ready. A process that is stopping still serves, but must get no new requests.
func (p *Process) answerReady(c *gin.Context) {
	// The limits are short, because a load balancer waits only a few seconds for the answer.
	ctx, cancel := context.WithTimeout(c.Request.Context(), time.Second/2)
	defer cancel()
	state := gin.H{"status": "ready", "postgres": "up", "redis": "up"}
	status := http.StatusOK
	if err := p.Redis.Ping(ctx).Err(); err != nil {
		state["status"], state["redis"] = "degraded", "down"
		_ = c.Error(err) // for the log, at the level DEBUG: the process is ready
	}
	ctx, cancel = context.WithTimeout(c.Request.Context(), 2*time.Second)
	defer cancel()
	switch waits, err := p.checkReady(ctx); {
	case err != nil:
		state["status"], state["postgres"] = "unready", "down"
		status = http.StatusServiceUnavailable
		_ = c.Error(err)
	case waits:
		state["status"], state["postgres"] = "degraded", "waiting"
	}
	if p.stopping.Load() {
		state["status"] = "stopping"
		status = http.StatusServiceUnavailable
	}
	c.JSON(status, state)
}

// checkReady returns an error if the database does not answer, or lacks one of the parts' relations. It reports
// whether commits wait for a standby.
func (p *Process) checkReady(ctx context.Context) (commitsWait bool, err error) {
	var relations []string
	for _, part := range p.Parts {
		relations = append(relations, part.Relations...)
	}
	_, err = p.Pool.ExecContext(ctx, `SELECT name::regclass FROM unnest($1::text[]) AS required (name)`, relations)
	if err != nil {
		return false, fmt.Errorf("check for the relations %v: %w", relations, err)
	}
	return postgres.CommitsWait(ctx, p.Pool)
}
