package rest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

const shutdownGrace = 10 * time.Second // for the requests that are under way when a shutdown begins
const idleTimeout = 2 * time.Minute    // longer than proxies keep a connection, which is mostly a minute
const readTimeout = 5 * time.Second    // for headers and body; a client that takes longer gets the status 408

// Serve answers requests until ctx ends. Then it waits at most 10 s for the requests that are under way. A handler
// must answer within 15 s. [Deadline] sets a shorter limit, so that the handler has time left to answer with an error.
func Serve(ctx context.Context, ln net.Listener, handler http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler:        handler,
		ReadTimeout:    readTimeout,
		WriteTimeout:   15 * time.Second,
		IdleTimeout:    idleTimeout,
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug), // mostly about closed connections
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer cancel()
		stopped <- server.Shutdown(grace)
	})
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		stop()
		return fmt.Errorf("serve HTTP: %w", err)
	}
	if err := <-stopped; err != nil {
		log.Warn("requests were still under way after the grace period; their connections are closed",
			"grace", shutdownGrace.String(), "error", err)
		return server.Close()
	}
	return nil
}
