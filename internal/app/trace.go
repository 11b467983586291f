package app

import (
	"context"

	"github.com/gin-gonic/gin"
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
}

// traceRequest calls Request of the tracer, if there is one. An answer that does not end has no span.
func (p *Process) traceRequest(c *gin.Context) {
	if p.cfg.Tracer != nil && !p.streams[c.FullPath()] {
		p.cfg.Tracer.Request(c)
	}
}

// StartCall begins a span of a call to another service, if there is a tracer, and returns the function that ends it.
func (p *Process) StartCall(ctx context.Context, name string) (span context.Context, end func(error)) {
	if p.cfg.Tracer == nil {
		return ctx, func(error) {}
	}
	return p.cfg.Tracer.StartCall(ctx, name)
}
