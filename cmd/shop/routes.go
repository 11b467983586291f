package main

import (
	"context"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.com/shop/internal/rest"
	"example.com/shop/web"
)

// requestTimeout is shorter than the time that [rest.Serve] gives a handler, so that the handler can answer with an
// error.
const requestTimeout = 8 * time.Second

// streamPath is the path of the notifications. Its answers do not end.
const streamPath = "/api/events"

// handler returns the handler of all paths of the process. Each mount adds further routes to the root and to the
// operators' API. The demo adds its faults this way.
func (a *app) handler(o *serveOptions, mounts ...func(root, ops gin.IRouter)) (http.Handler, error) {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.HandleMethodNotAllowed = true
	r.RedirectTrailingSlash = false // each path has one spelling
	r.Use(
		rest.RequestID(),
		rest.Measure(a.metrics, streamPath),
		rest.Log(a.log, "/healthz", "/readyz", "/metrics"),
		rest.Recover(a.log),
		rest.SecurityHeaders,
		rest.SameOrigin(),
		rest.Deadline(requestTimeout, streamPath),
	)
	r.NoRoute(rest.NoRoute)
	r.NoMethod(rest.NoMethod)

	r.Match(rest.ReadMethods, "/healthz", func(c *gin.Context) { c.JSON(http.StatusOK, gin.H{"status": "ok", "version": version()}) })
	r.Match(rest.ReadMethods, "/readyz", a.ready)
	r.Match(rest.ReadMethods, "/metrics", gin.WrapH(promhttp.HandlerFor(&sharedGatherer{from: a.registry}, promhttp.HandlerOpts{})))
	if !o.has("api") {
		return r, nil
	}

	tokens, err := rest.NewTokens(tokenConfig(o.TokenKey))
	if err != nil {
		return nil, usageError{err}
	}
	a.orders.Routes(r, tokens)
	customer := func(c *gin.Context) string { return rest.Customer(c).String() }
	r.Match(rest.ReadMethods, streamPath, rest.Parameters(), tokens.Authenticate(), a.hub.Stream(customer))
	ops := r.Group("/ops/api", requireOps(o.OpsToken))
	a.opsRoutes(ops)
	a.paymentRoutes(r, ops, tokens)
	for _, mount := range mounts {
		mount(r, ops)
	}
	r.Match(rest.ReadMethods, "/", page("index.html"))
	r.Match(rest.ReadMethods, "/ops", page("ops.html"))
	r.StaticFS("/assets", &gin.OnlyFilesFS{FileSystem: http.FS(web.Assets())})
	r.Match(rest.ReadMethods, "/openapi.yaml", func(c *gin.Context) { c.Data(http.StatusOK, "application/yaml", openAPI) })
	return r, nil
}

func tokenConfig(key string) rest.TokenConfig {
	return rest.TokenConfig{
		Key: []byte(key), Issuer: "shop", Audience: "shop-customers",
		Cookie: "shop_token", CookiePath: "/api", SignUp: "sign up with POST /api/customers",
	}
}

func page(name string) gin.HandlerFunc {
	return func(c *gin.Context) { http.ServeFileFS(c.Writer, c.Request, web.Pages, name) }
}

// ready tells a load balancer whether to send requests to this process. Without Redis the process is degraded but
// ready: it accepts orders, and the reconciler cancels them a little late. Without the database, or without its tables,
// the process is not ready. A process that is stopping still serves, but must get no new requests.
func (a *app) ready(c *gin.Context) {
	// The limits are short, because a load balancer waits only a few seconds for the answer.
	ctx, cancel := context.WithTimeout(c.Request.Context(), time.Second/2)
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
