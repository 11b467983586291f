package main

import (
	"context"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.com/shop/internal/order"
	"example.com/shop/web"
)

// requestTimeout ends a request's work, with time left to say so.
const requestTimeout = 8 * time.Second

// handler is every path of the process. faults are the demo's; nil elsewhere, and then their paths do
// not exist.
func (a *app) handler(o *serveOptions, faults *faults) (http.Handler, error) {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.HandleMethodNotAllowed = true
	r.RedirectTrailingSlash = false // one spelling of each path, and a problem for the others
	r.Use(order.RequestID(), measure(a.registry), order.Log(a.log, "/healthz", "/readyz", "/metrics"), order.Recover(a.log), secure, sameOrigin(), deadline)
	r.NoRoute(order.NotFound)
	r.NoMethod(order.MethodNotAllowed)

	r.Match(order.Reading, "/healthz", func(c *gin.Context) { c.JSON(http.StatusOK, gin.H{"status": "ok", "version": version()}) })
	r.Match(order.Reading, "/readyz", a.ready)
	r.Match(order.Reading, "/metrics", gin.WrapH(promhttp.HandlerFor(&sharedGatherer{from: a.registry}, promhttp.HandlerOpts{})))
	if !o.has("api") {
		return r, nil
	}

	tokens, err := order.NewTokens([]byte(o.TokenKey))
	if err != nil {
		return nil, usageError{err}
	}
	a.orders.Routes(r, tokens, a.feed)
	a.opsRoutes(r.Group("/ops/api", requireOps(o.OpsToken)), faults)
	r.Match(order.Reading, "/", page("index.html"))
	r.Match(order.Reading, "/ops", page("ops.html"))
	r.StaticFS("/assets", &gin.OnlyFilesFS{FileSystem: http.FS(web.Assets())})
	r.Match(order.Reading, "/openapi.yaml", func(c *gin.Context) { c.Data(http.StatusOK, "application/yaml", openAPI) })
	return r, nil
}

func page(name string) gin.HandlerFunc {
	return func(c *gin.Context) { http.ServeFileFS(c.Writer, c.Request, web.Pages, name) }
}

// sameOrigin refuses what the page of another site has a browser do with the customer's cookie. Clients that
// are no browsers do not say where they come from, and pass.
func sameOrigin() gin.HandlerFunc {
	protection := http.NewCrossOriginProtection()
	return order.Handle(func(c *gin.Context) error {
		if err := protection.Check(c.Request); err != nil {
			return &order.Error{Code: order.CodeCrossOrigin, Detail: "Another site's page may not do this here.", Err: err}
		}
		return nil
	})
}

// secure sets what a browser must be told. Answers hold a customer's orders: nothing is cached.
func secure(c *gin.Context) {
	h := c.Writer.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "+
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	c.Next()
}

// deadline bounds the work of a request. The work goes on when the client closes its half of the connection, or all of
// it: net/http cannot tell the two apart and ends the request's context, but the client may still read the answer.
func deadline(c *gin.Context) {
	if isStream(c) {
		c.Next()
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request.Context()), requestTimeout)
	defer cancel()
	c.Request = c.Request.WithContext(ctx)
	c.Next()
}

// isStream tells the path whose answer takes as long as its reader stays.
func isStream(c *gin.Context) bool { return c.FullPath() == order.StreamPath }

// ready tells a load balancer whether to send requests here. Without Redis orders are still taken, and
// cancelled a little later: degraded, but ready. Without the database, or its tables, nothing works. A process that is about
// to stop still serves, but should get no new requests.
func (a *app) ready(c *gin.Context) {
	ctx, cancel := context.WithTimeout(c.Request.Context(), time.Second/2) // who asks does not wait long
	defer cancel()
	state := gin.H{"status": "ready", "postgres": "up", "redis": "up"}
	status := http.StatusOK
	if err := a.rdb.Ping(ctx).Err(); err != nil {
		state["status"], state["redis"] = "degraded", "down"
	}
	ctx, cancel = context.WithTimeout(c.Request.Context(), 2*time.Second)
	defer cancel()
	if err := a.store.Ready(ctx); err != nil {
		state["status"], state["postgres"] = "unready", "down"
		status = http.StatusServiceUnavailable
	}
	if a.stopping.Load() {
		state["status"] = "stopping"
		status = http.StatusServiceUnavailable
	}
	c.JSON(status, state)
}
