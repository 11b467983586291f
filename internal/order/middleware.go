package order

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
)

// What a request's context holds.
const (
	requestIDKey = "request_id"
	orderIDKey   = "order_id" // for the log
	customerKey  = "customer"
)

var saneRequestID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// RequestID gives every request an id, the caller's X-Request-ID if it is sane. Answers, problems and log
// lines carry it.
func RequestID() gin.HandlerFunc {
	return func(c *gin.Context) {
		id := c.GetHeader("X-Request-ID")
		if !saneRequestID.MatchString(id) {
			id = rand.Text()
		}
		c.Set(requestIDKey, id)
		c.Header("X-Request-ID", id)
	}
}

func requestID(c *gin.Context) string { return c.GetString(requestIDKey) }

// Log writes a line per request, with what it failed of. Those of quiet routes, which machines ask every few
// seconds, are for debugging, unless they fail.
func Log(log *slog.Logger, quiet ...string) gin.HandlerFunc {
	return func(c *gin.Context) {
		started := time.Now()
		c.Next()
		attrs := []slog.Attr{
			slog.String("request_id", requestID(c)),
			slog.String("method", clip(c.Request.Method, 32)),
			slog.String("path", clip(c.Request.URL.Path, 256)),
			slog.Int("status", c.Writer.Status()),
			slog.Float64("took_ms", float64(time.Since(started).Microseconds())/1000),
		}
		if id := c.GetString(orderIDKey); id != "" {
			attrs = append(attrs, slog.String("order_id", id))
		}
		if err := c.Errors.Last(); err != nil {
			attrs = append(attrs, slog.String("error", clip(err.Error(), 1000)))
		}
		level := slog.LevelInfo
		switch {
		case c.Writer.Status() >= http.StatusInternalServerError:
			level = slog.LevelError
		case slices.Contains(quiet, c.FullPath()):
			level = slog.LevelDebug
		}
		log.LogAttrs(c.Request.Context(), level, "request", attrs...)
	}
}

// clip bounds text that a client chose to at most so many bytes: one request must not fill the log.
func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// Recover answers a request whose handler panicked, and logs where.
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
				"request_id", requestID(c), "panic", p, "stack", string(debug.Stack()))
			if c.Writer.Written() {
				panic(http.ErrAbortHandler) // half an answer must not look like a whole one
			}
			Fail(c, fmt.Errorf("handler panicked: %v", p))
		}()
		c.Next()
	}
}
