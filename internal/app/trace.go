package app

import (
	"context"
	"log/slog"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/reconcile"
)

// Tracer sees what a process does, besides its statements and its commands to Redis, which drivers trace.
type Tracer interface {
	// Request is a handler that comes before all others.
	Request(c *gin.Context)
	// StartTasks begins a span of the rows that a worker or a reconciler handles as a batch, and returns the function
	// that ends it.
	StartTasks(ctx context.Context, kind string, ids []string) (span context.Context, end func(error))
	// StartCall begins a span of a call to another service, and returns the function that ends it.
	StartCall(ctx context.Context, name string) (span context.Context, end func(error))
	// LogAttrs returns attributes that a line of the log gets.
	LogAttrs(ctx context.Context) []slog.Attr
}

// traceRequest calls Request of the tracer, if there is one. An answer that does not end has no span.
func (p *Process) traceRequest(c *gin.Context) {
	if p.cfg.Tracer != nil && !p.streams[c.FullPath()] {
		p.cfg.Tracer.Request(c)
	}
}

// beginTasks returns StartTasks of the tracer, or nil if there is none.
func (p *Process) beginTasks() reconcile.BeginSpan {
	if p.cfg.Tracer == nil {
		return nil
	}
	return p.cfg.Tracer.StartTasks
}

// StartCall begins a span of a call to another service, if there is a tracer, and returns the function that ends it.
func (p *Process) StartCall(ctx context.Context, name string) (span context.Context, end func(error)) {
	if p.cfg.Tracer == nil {
		return ctx, func(error) {}
	}
	return p.cfg.Tracer.StartCall(ctx, name)
}

// tracedLog adds the tracer's attributes to each line of the log.
type tracedLog struct {
	slog.Handler
	tracer Tracer
}

// Handle calls Handle of the handler.
func (h tracedLog) Handle(ctx context.Context, r slog.Record) error {
	r.AddAttrs(h.tracer.LogAttrs(ctx)...)
	return h.Handler.Handle(ctx, r)
}

// WithAttrs calls WithAttrs of the handler.
func (h tracedLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return tracedLog{h.Handler.WithAttrs(attrs), h.tracer}
}

// WithGroup calls WithGroup of the handler.
func (h tracedLog) WithGroup(name string) slog.Handler {
	return tracedLog{h.Handler.WithGroup(name), h.tracer}
}
