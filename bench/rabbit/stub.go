// Package rabbit is a stub.
package rabbit

import (
	"context"
	"errors"
)

var ErrMissing = errors.New("missing")

type Server struct{}

func Start(ctx context.Context, dir string) (*Server, error) { return nil, ErrMissing }
func (*Server) URL() string                                  { return "" }
func (*Server) Pid() int                                     { return 0 }
func (*Server) Stop() error                                  { return nil }
func (*Server) Wipe(ctx context.Context) error               { return nil }
func (*Server) Version(ctx context.Context) (string, error)  { return "", nil }
