package rest

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"example.com/shop/internal/clip"
)

// The keys of values in a request's gin.Context.
const (
	requestIDKey = "request_id"
	logAttrsKey  = "log_attrs"
	customerKey  = "customer"
)

var validRequestID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// RequestID gives every request an id: the client's X-Request-ID if that is 1 to 64 letters, digits, dots, dashes and
// underscores, else a random one. Answers, problems and log lines carry it.
func RequestID() gin.HandlerFunc {
	return func(c *gin.Context) {
		id := idOf(c.Request)
		c.Set(requestIDKey, id)
		c.Header("X-Request-ID", id)
	}
}

func idOf(r *http.Request) string {
	if id := r.Header.Get("X-Request-ID"); validRequestID.MatchString(id) {
		return id
	}
	return rand.Text()
}

// AddLogAttr adds an attribute to the line that [Log] writes for the request.
func AddLogAttr(c *gin.Context, attr slog.Attr) {
	attrs, _ := c.Get(logAttrsKey)
	known, _ := attrs.([]slog.Attr)
	c.Set(logAttrsKey, append(known, attr))
}

// Log writes a line for each request, with its error. Some lines have the level DEBUG: those of the quiet routes,
// which monitoring requests every few seconds, unless the status is 500 or higher; and those of requests rejected as
// [Overloaded], because there are many of them.
func Log(log *slog.Logger, quiet ...string) gin.HandlerFunc {
	return func(c *gin.Context) {
		started := time.Now()
		c.Next()
		level := requestLevel(c, quiet)
		if !log.Enabled(c.Request.Context(), level) {
			return
		}
		attrs := []slog.Attr{
			slog.String("request_id", c.GetString(requestIDKey)),
			slog.String("method", clip.Text(c.Request.Method, 32)),
			slog.String("path", clip.Text(c.Request.URL.Path, 256)),
			slog.Int("status", c.Writer.Status()),
			slog.Float64("took_ms", float64(time.Since(started).Microseconds())/1000),
		}
		if added, ok := c.Get(logAttrsKey); ok {
			attrs = append(attrs, added.([]slog.Attr)...)
		}
		if err := c.Errors.Last(); err != nil {
			attrs = append(attrs, slog.String("error", clip.Text(err.Error(), 1000)))
		}
		log.LogAttrs(c.Request.Context(), level, "request", attrs...)
	}
}

func requestLevel(c *gin.Context, quiet []string) slog.Level {
	err := c.Errors.Last()
	switch {
	case err != nil && AsError(err).Class == Overloaded:
		return slog.LevelDebug
	case c.Writer.Status() >= http.StatusInternalServerError:
		return slog.LevelError
	case slices.Contains(quiet, c.FullPath()):
		return slog.LevelDebug
	default:
		return slog.LevelInfo
	}
}

// Measure observes the duration of each request by method, status and the pattern of its route. Paths contain ids and
// would make too many series. So would the methods of requests without a route, because a client may send any word as
// the method. Measure omits the routes for which isStream is true, because their answers do not end.
func Measure(reg prometheus.Registerer, isStream func(route string) bool) gin.HandlerFunc {
	seconds := promauto.With(reg).NewHistogramVec(prometheus.HistogramOpts{
		Name:    "http_request_seconds",
		Help:    "Time to answer a request.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
	}, []string{"method", "route", "status"})
	return func(c *gin.Context) {
		began := time.Now()
		c.Next()
		route, method := c.FullPath(), c.Request.Method
		if isStream(route) {
			return
		}
		if route == "" {
			route, method = "none", "other"
		}
		seconds.WithLabelValues(method, route, strconv.Itoa(c.Writer.Status())).Observe(time.Since(began).Seconds())
	}
}

// Recover answers with a problem if the handler of a request panics, and logs the stack. If the handler has written
// part of its answer already, Recover closes the connection instead.
func Recover(log *slog.Logger) gin.HandlerFunc {
	return func(c *gin.Context) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler {
				panic(p)
			}
			log.ErrorContext(c.Request.Context(), "handler panicked",
				"request_id", c.GetString(requestIDKey), "panic", p, "stack", string(debug.Stack()))
			if c.Writer.Written() {
				panic(http.ErrAbortHandler) // closes the connection: the client sees that the answer is incomplete
			}
			Fail(c, fmt.Errorf("handler panicked: %v", p))
		}()
		c.Next()
	}
}

// Deadline limits the time to answer a request, except on the routes for which isStream is true, because their answers
// do not end. The handler continues when the client closes the connection, or only its half of the connection. net/http
// cannot distinguish the two, and cancels the context of the request in both cases, but a client that closed only its
// half still reads the answer.
func Deadline(timeout time.Duration, isStream func(route string) bool) gin.HandlerFunc {
	return func(c *gin.Context) {
		if !isStream(c.FullPath()) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request.Context()), timeout)
			defer cancel()
			c.Request = c.Request.WithContext(ctx)
		}
		c.Next()
	}
}

// SameOrigin rejects a request that a page of another site makes a browser send, except GET, HEAD and OPTIONS. It
// accepts requests of clients that are not browsers. See [http.CrossOriginProtection]. The site is the Host of the
// request, and publicURL too unless it is "".
func SameOrigin(publicURL string) (gin.HandlerFunc, error) {
	protection := http.NewCrossOriginProtection()
	if publicURL != "" {
		if !strings.HasPrefix(publicURL, "https://") && !strings.HasPrefix(publicURL, "http://") {
			return nil, fmt.Errorf("the scheme of %q is neither https nor http", publicURL)
		}
		if err := protection.AddTrustedOrigin(publicURL); err != nil {
			return nil, err
		}
	}
	return Handle(func(c *gin.Context) error {
		if err := protection.Check(c.Request); err != nil {
			return &Error{Class: CrossOrigin, Detail: fmt.Sprintf("A page of another site may not send this request: "+
				"its Origin is %.200q, and its Host is %.200q. If both should be this site, a proxy has changed the Host: "+
				"it must pass on the one that the browser has sent, or the service must be given the site's public URL.",
				c.GetHeader("Origin"), c.Request.Host), Err: err}
		}
		return nil
	}), nil
}

// SecurityHeaders tells browsers to load only the site's own files, and to cache nothing: answers hold customers' data.
func SecurityHeaders(c *gin.Context) {
	h := c.Writer.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "+
		"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "+
		"require-trusted-types-for 'script'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}
