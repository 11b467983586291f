package app

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
)

// RequestTimeout limits the time of a request, except for [Part.Streams]. It is shorter than the time
// that [rest.Serve] gives a handler, so that the handler can answer with an error.
const RequestTimeout = 8 * time.Second

// newRouter makes the router with the routes that every process has: the health checks and the metrics.
func (p *Process) newRouter() {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.HandleMethodNotAllowed = true
	r.RedirectTrailingSlash = false // each path has one spelling
	isStream := func(route string) bool { return p.streams[route] }
	r.Use(
		p.traceRequest,
		rest.RequestID(),
		rest.Measure(p.Metrics, isStream),
		rest.Log(p.Log, "/healthz", "/readyz", "/metrics"),
		rest.Recover(p.Log),
		rest.SecurityHeaders,
		rest.SameOrigin(),
		rest.Deadline(RequestTimeout, isStream),
	)
	r.NoRoute(rest.NoRoute)
	r.NoMethod(rest.NoMethod)
	r.Match(rest.ReadMethods, "/healthz", func(c *gin.Context) {
		c.JSON(http.StatusOK, gin.H{"status": "ok", "version": p.cfg.Version})
	})
	r.Match(rest.ReadMethods, "/readyz", p.answerReady)
	metrics := promhttp.HandlerFor(oncePerSecond(p.Registry), promhttp.HandlerOpts{})
	r.Match(rest.ReadMethods, "/metrics", gin.WrapH(metrics))
	p.router = r
	p.ops = r.Group("/ops/api", func(c *gin.Context) {
		if p.cfg.OpsGuard == nil {
			rest.NoRoute(c)
			c.Abort()
			return
		}
		p.cfg.OpsGuard(c)
	})
}

// ownContract is the piece of the OpenAPI document, the contract, about the routes of this package. It also has what
// the pieces of several parts refer to: problems, parameters of pages, and the operators' token.
//
//go:embed openapi.yaml
var ownContract []byte

// Handler returns the handler of all routes, among them that of the OpenAPI document. Call it once, when all parts are
// added.
func (p *Process) Handler() (http.Handler, error) {
	if p.Has(API) {
		text, err := MergeContracts(append([][]byte{ownContract}, p.contract...)...)
		if err != nil {
			return nil, err
		}
		p.router.Match(rest.ReadMethods, "/openapi.yaml", func(c *gin.Context) {
			c.Data(http.StatusOK, "application/yaml", text)
		})
	}
	var h http.Handler = p.router
	for _, wrap := range p.outer {
		h = wrap(h)
	}
	return h, nil
}

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
	_, err = p.Pool.ExecContext(ctx, `SELECT name::regclass FROM unnest($1::text[]) AS required (name)`, p.relations)
	if err != nil {
		return false, fmt.Errorf("check for the relations %v: %w", p.relations, err)
	}
	return postgres.CommitsWait(ctx, p.Pool)
}
