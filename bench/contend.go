package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"example.com/shop/bench/contender"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/timeout"
)

// A contender runs in a process of its own, so that its memory and processor time can be measured and so that it can
// be killed. The benchmark sends requests to its standard input, and it writes one reply to each to its standard
// output. It ends when its standard input ends.

// request is a request to the process of a contender. One of its fields is set.
type request struct {
	Schedule []scheduled   // schedule these orders
	Place    []scheduled   // begin to place these orders, and reply at once
	Fault    fault         // have this fault once
	Hang     time.Duration // for how long, if the fault is hang
	Counts   bool          // reply with the counts
}

// scheduled is a [contender.Order] for another process.
type scheduled struct {
	ID  string
	Due int64 // nanoseconds since 1970
}

// contenderOrders returns the orders with the reading of this process's monotonic clock.
func contenderOrders(all []scheduled) []contender.Order {
	orders := make([]contender.Order, len(all))
	for i, o := range all {
		orders[i] = contender.Order{ID: o.ID, Due: time.Now().Add(time.Until(time.Unix(0, o.Due)))}
	}
	return orders
}

// reply is the reply to a request. The first reply comes without a request, when the contender can cancel orders.
type reply struct {
	Error  string // empty: none
	Addr   string // in the first reply: the address of the shop's REST interface
	Counts counts
}

// counts are numbers of orders since the process started.
type counts struct {
	Cancelled   int // cancelled when the contender delivered them
	Repeated    int // delivered after they had ended
	Unscheduled int // placed, but not scheduled because of an error
	Placing     int // that the process is placing and scheduling now
}

// contendOptions configure the process of a contender.
type contendOptions struct {
	Name                             string
	Process                          string // see contender.Env
	Eager                            bool   // serve requests also while the contender cannot cancel orders yet
	Clean                            bool   // only remove what earlier runs left
	DatabaseURL, RedisURL, RabbitURL string
}

// contend runs a contender, and serves requests until in ends.
func contend(ctx context.Context, options string, in io.Reader, out io.Writer, logs io.Writer) error {
	var o contendOptions
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		return fmt.Errorf("decode the options: %w", err)
	}
	c, err := newChild(ctx, o, slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return err
	}
	defer c.close()
	if o.Clean {
		return c.clean(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	requests := receive(ctx, in, cancel)
	parts, ctx := errgroup.WithContext(ctx)
	ready := make(chan struct{})
	parts.Go(func() error {
		err := c.contender.Run(ctx, func() { close(ready) })
		if err == nil && ctx.Err() == nil {
			err = errors.New("the contender stopped before it was asked to")
		}
		return err
	})
	parts.Go(func() error { return rest.Serve(ctx, c.listener, c.handler, c.log) })
	parts.Go(func() error {
		defer cancel()
		if !o.Eager {
			select {
			case <-ready:
			case <-ctx.Done():
				return nil
			}
		}
		return c.serve(ctx, requests, json.NewEncoder(out))
	})
	return parts.Wait()
}

// receive decodes requests until in ends, and then calls ended.
func receive(ctx context.Context, in io.Reader, ended func()) <-chan request {
	requests := make(chan request)
	go func() {
		defer ended()
		for decoder := json.NewDecoder(in); ; {
			var r request
			if err := decoder.Decode(&r); err != nil {
				return // the benchmark has closed the pipe, or has ended
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	return requests
}

// child is the process of a contender.
type child struct {
	contender contender.Contender
	listener  net.Listener
	handler   http.Handler
	log       *slog.Logger
	closers   []func()
	placing   *placing

	cancelled, repeated, unscheduled, inProgress atomic.Int64 // see counts
}

// newChild builds the contender and the shop's REST interface. The process ends after an error, so newChild closes
// nothing then.
func newChild(ctx context.Context, o contendOptions, log *slog.Logger) (*child, error) {
	info, err := find(o.Name)
	if err != nil {
		return nil, err
	}
	c := &child{log: log}
	gdb, err := postgres.Open(ctx, o.DatabaseURL, "bench", 20, postgres.IndexPlans, nil)
	if err != nil {
		return nil, err
	}
	if c.placing, err = newPlacing(ctx, o.DatabaseURL); err != nil {
		return nil, err
	}
	c.closers = append(c.closers, c.placing.pool.Close)
	env := contender.Env{
		DatabaseURL: o.DatabaseURL, RedisURL: o.RedisURL, RabbitURL: o.RabbitURL,
		Process: o.Process, Log: log, Place: c.placing.commit,
	}
	if env.DB, err = gdb.DB(); err != nil {
		return nil, err
	}
	c.closers = append(c.closers, func() { env.DB.Close() })
	if env.Redis, err = delay.Connect(o.RedisURL, nil); err != nil {
		return nil, err
	}
	c.closers = append(c.closers, func() { env.Redis.Close() })

	cfg := order.Config{Options: order.Options{OrderTimeout: time.Hour}}
	orders := order.NewService(order.NewStore(gdb), c, cfg, log, prometheus.NewRegistry())
	env.Orders = timeout.NewTable(gdb, order.CancelKind, c.counting(orders.Rows()), log)
	env.Handle = c.placing.failing(env.Orders.Handle)
	env.Cancel = func(ctx context.Context, ids ...string) ([]contender.Order, error) {
		return cancelDue(ctx, env.Handle, ids)
	}
	if c.contender, err = info.New(ctx, env); err != nil {
		return nil, fmt.Errorf("set up %s: %w", o.Name, err)
	}
	return c, c.listen(orders)
}

// clean removes what earlier runs left outside of Redis and of the tables of the shop.
func (c *child) clean(ctx context.Context) error {
	if cleaner, ok := c.contender.(contender.Cleaner); ok {
		return cleaner.Clean(ctx)
	}
	return nil
}

// listen prepares the shop's REST interface, as cmd/shop does, but without a log of requests.
func (c *child) listen(orders *order.Service) (err error) {
	tokens, err := rest.NewTokens(rest.TokenConfig{
		Key: []byte(tokenKey), Issuer: "bench", Audience: "bench", Cookie: "bench", CookiePath: "/",
	})
	if err != nil {
		return err
	}
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	router.ContextWithFallback = true
	noStream := func(string) bool { return false }
	router.Use(rest.RequestID(), rest.Recover(c.log), rest.Deadline(8*time.Second, noStream))
	orders.Routes(router, tokens)
	c.handler = orders.Shed(router)
	c.listener, err = net.Listen("tcp", "127.0.0.1:0")
	return err
}

// tokenKey signs the tokens of the benchmark's customers.
const tokenKey = "the benchmark's key for tokens: 32 bytes or more"

func (c *child) close() {
	for _, closer := range c.closers {
		closer()
	}
}

// serve writes the first reply, and then one reply to each request, until ctx ends.
func (c *child) serve(ctx context.Context, requests <-chan request, replies *json.Encoder) error {
	if err := replies.Encode(reply{Addr: c.listener.Addr().String()}); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-requests:
			if err := replies.Encode(c.answer(ctx, r)); err != nil {
				return err
			}
		}
	}
}

func (c *child) answer(ctx context.Context, r request) (a reply) {
	var err error
	switch {
	case r.Counts:
		a.Counts = c.counts()
	case r.Fault != "":
		c.placing.hang.Store(int64(r.Hang))
		c.placing.fault.Store(r.Fault)
	case len(r.Place) > 0:
		c.inProgress.Add(int64(len(r.Place)))
		go func() {
			defer c.inProgress.Add(-int64(len(r.Place)))
			c.place(ctx, contenderOrders(r.Place))
		}()
	default:
		err = c.contender.Schedule(ctx, contenderOrders(r.Schedule))
	}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

// counting returns rows that also count what the worker's and the reconciler's statements find.
func (c *child) counting(rows timeout.Rows) timeout.Rows {
	observe := rows.Observe
	rows.Observe = func(ctx context.Context, results []timeout.Result, actor timeout.Caller) {
		for _, v := range results {
			switch v.State {
			case timeout.TimedOut:
				c.cancelled.Add(1)
			case timeout.AlreadyEnded:
				c.repeated.Add(1)
			}
		}
		observe(ctx, results, actor)
	}
	return rows
}

func (c *child) counts() counts {
	return counts{
		Cancelled: int(c.cancelled.Load()), Repeated: int(c.repeated.Load()),
		Unscheduled: int(c.unscheduled.Load()), Placing: int(c.inProgress.Load()),
	}
}

// Publish schedules the tasks of orders that were placed over HTTP. A contender with a fast path of its own uses that.
func (c *child) Publish(ctx context.Context, msgs ...delay.Message) bool {
	if fast, ok := c.contender.(interface {
		Publish(ctx context.Context, msgs ...delay.Message) bool
	}); ok {
		return fast.Publish(ctx, msgs...)
	}
	orders := make([]contender.Order, len(msgs))
	for i, m := range msgs {
		orders[i] = contender.Order{ID: m.ID, Due: m.Due()}
	}
	if err := c.contender.Schedule(context.WithoutCancel(ctx), orders); err != nil {
		c.unscheduled.Add(int64(len(orders)))
		c.log.Warn("placed orders were not scheduled", "orders", len(orders), "error", err)
		return false
	}
	return true
}

// cancelDue is Env.Cancel.
func cancelDue(ctx context.Context, handle delay.Handler, ids []string) (early []contender.Order, err error) {
	tasks := make([]delay.Task, len(ids))
	for i, id := range ids {
		tasks[i].ID = id
	}
	outcomes, err := handle(ctx, tasks)
	if err != nil {
		return nil, err
	}
	for i, o := range outcomes {
		if err := o.Err(); err != nil {
			return nil, fmt.Errorf("cancel %s: %w", ids[i], err)
		}
		if in, again := o.Retry(); again {
			early = append(early, contender.Order{ID: ids[i], Due: time.Now().Add(in)})
		}
	}
	return early, nil
}

const contendVariable = "BENCH_CONTEND"

// isContender reports whether this process was started to run a contender, and returns its options.
func isContender() (options string, ok bool) { return os.LookupEnv(contendVariable) }

// contenderMain is the main function of the process of a contender. It returns the exit status. It ignores Ctrl-C: the
// benchmark decides when the process ends.
func contenderMain(options string) int {
	signal.Ignore(os.Interrupt)
	if err := contend(context.Background(), options, os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
