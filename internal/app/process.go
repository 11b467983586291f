// Package app holds what a process is: its roles, connections, log and metrics, its HTTP server, its kinds of task and
// the components that run in it.
//
// A program has a composition root: a function that calls [Connect], then the constructors of all parts with the
// connections, and at the end [New], which makes a [Process] of them. A part is a feature that a team can leave out,
// such as pages. It gives New a [Part], which lists what a part can have. This package depends on none of them.
//
// It also has what every program of this kind has: the commands serve, migrate, reconcile, health and version, with
// their options. Package doctor has one more. A program embeds these options in its own commands, beside the options of
// its parts. Every option is a flag and an environment variable, whose name follows from the flag: --http-addr and
// SHOP_HTTP_ADDR.
package app

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
)

// Process is a process with all its parts.
type Process struct {
	*Base
	Kinds Kinds
	Parts Parts

	handler  http.Handler
	last     errgroup.Group // runs the components that are last
	endLast  context.CancelFunc
	stopping atomic.Bool // the process received a signal to stop
}

// New returns a process with kinds of task and parts. It starts the components that are last. Its Close closes the
// connections of b; after an error of New the caller closes them.
func New(b *Base, kinds Kinds, parts ...Part) (*Process, error) {
	p := &Process{Base: b, Kinds: kinds, Parts: parts}
	if least := p.leastSessions(); b.Has(Reconciler) && b.DatabaseConns < least {
		return nil, Usage(fmt.Errorf("%s is %d, want at least %d, for the sweeps of %d kinds of task",
			OptionName("database-conns"), b.DatabaseConns, least, len(kinds)))
	}
	for _, k := range kinds {
		b.Metrics.MustRegister(delay.NewDepthCollector(k.Queue, k.Outbox))
	}
	if err := p.route(); err != nil {
		return nil, err
	}
	last, endLast := context.WithCancel(context.Background())
	p.endLast = endLast
	for _, c := range p.components() {
		if c.Last {
			p.last.Go(func() error { return c.Run(last) })
		}
	}
	return p, nil
}

// leastSessions returns how many sessions of PostgreSQL the sweeps need. They may run at the same time. Each keeps one
// for its lock, and needs another one.
func (p *Process) leastSessions() int { return len(p.Kinds) + 1 }

// CheckSessions returns an error if PostgreSQL, or a pooler before it, lends too few sessions for the sweeps.
func (p *Process) CheckSessions(ctx context.Context) error {
	return postgres.CheckSessions(ctx, p.Pool, min(p.leastSessions(), p.DatabaseConns))
}

// logDatabase logs which privileges the process lacks, and which sessions a reconciler lacks, so that its start names
// them.
func (p *Process) logDatabase(ctx context.Context) {
	err := CheckPrivileges(ctx, p.Pool)
	if p.Has(Reconciler) {
		err = JoinErrors(err, p.CheckSessions(ctx))
	}
	if err != nil && ctx.Err() == nil {
		p.Log.Warn("requests and sweeps may fail, because PostgreSQL grants too little", "error", err)
	}
}

// components returns the components of the roles of the process, without the reconcilers.
func (p *Process) components() (all []Component) {
	for _, k := range p.Kinds {
		all = append(all, k.components()...)
	}
	for _, part := range p.Parts {
		all = append(all, part.Components...)
	}
	return slices.DeleteFunc(all, func(c Component) bool { return c.Role != "" && !p.Has(c.Role) })
}

// Close ends the components that are last, and closes the connections. Call it after Run has returned.
func (p *Process) Close() {
	p.endLast()
	if err := p.last.Wait(); err != nil {
		p.Log.Warn("what the process did last may not be passed on", "error", err)
	}
	for _, part := range slices.Backward(p.Parts) {
		if part.Close != nil {
			part.Close()
		}
	}
	p.Base.Close()
}

// Serve listens on an address, and serves until ctx ends.
func (p *Process) Serve(ctx context.Context, address string) error {
	ln, err := Listen(address)
	if err != nil {
		return err
	}
	p.Log.Info("serving", "addr", ln.Addr().String(), "roles", p.Roles, "version", p.Version)
	defer p.Log.Info("stopped")
	return p.Run(ctx, ln)
}

// Listen listens on the address of the option --http-addr.
func Listen(address string) (net.Listener, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", OptionName("http-addr"), err)
	}
	return ln, nil
}

// Run serves on ln and runs the kinds of task and the parts, until ctx ends and the drain is over. If a component
// fails, Run stops the others and returns the error.
func (p *Process) Run(ctx context.Context, ln net.Listener) error {
	workers := p.runWorkers
	for _, part := range p.Parts {
		if part.Workers != nil {
			workers = func(ctx context.Context) error { return part.Workers(ctx, p.runWorkers) }
		}
	}
	ctx, cancel := p.drained(ctx)
	defer cancel()
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return rest.Serve(ctx, ln, p.handler, p.Log) })
	for _, c := range p.components() {
		if !c.Last && c.Role != Worker {
			running.Go(func() error { return c.Run(ctx) })
		}
	}
	running.Go(func() error { p.logDatabase(ctx); return nil })
	for _, k := range p.Kinds {
		running.Go(func() error { k.Queue.LogRights(ctx, p.Log); return nil })
	}
	if p.Has(Worker) {
		running.Go(func() error { return workers(ctx) })
	}
	if p.Has(Reconciler) {
		running.Go(func() error { return p.Kinds.runReconcilers(ctx) })
	}
	return running.Wait()
}

// runWorkers runs the components of the role Worker until ctx ends.
func (p *Process) runWorkers(ctx context.Context) error {
	workers, ctx := errgroup.WithContext(ctx)
	for _, c := range p.components() {
		if c.Role == Worker {
			workers.Go(func() error { return c.Run(ctx) })
		}
	}
	return workers.Wait()
}

// drained returns a context that ends later than ctx, by the duration Drain. In the meantime the process serves as
// before, but /readyz tells load balancers to send it no more requests.
func (p *Process) drained(ctx context.Context) (context.Context, context.CancelFunc) {
	drained, cancel := context.WithCancel(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() {
		defer cancel()
		p.stopping.Store(true)
		p.Log.Info("stopping: /readyz answers 503 from now on", "drain", p.Drain.String())
		select {
		case <-time.After(p.Drain):
		case <-drained.Done(): // a component has failed
		}
	})
	return drained, func() { forget(); cancel() }
}
