// Package widget measures how the widget store, the public example shop of DBOS, keeps the promises of an order: its
// stock is returned once, and no payment is lost. The checkout is written from the page of the Go example:
// https://docs.dbos.dev/golang/examples/widget-store. The test asks the questions.
//
// The workflow creates the order, reserves a unit of stock, publishes an id for the payment, and waits for a message
// with the payment's status. If the status is "paid", it marks the order as paid and starts the dispatch. If there is
// another status, an error or no message in time, it returns the unit and cancels the order. It ignores the errors of
// these steps, as the page does. The example waits for 60 s, and its dispatch takes ten steps with a second before
// each. Here both are shorter.
//
// The pages of the Go and the Java example run each statement in a step. Those of the Python and the TypeScript example
// run it in a transaction of a datasource, which also records that the statement ran. The store can do both.
package widget

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// tables are those of the store. Those of DBOS are in the schema widget_dbos.
const tables = `
CREATE SCHEMA IF NOT EXISTS widget;
CREATE TABLE IF NOT EXISTS widget.products (product_id serial PRIMARY KEY, inventory integer NOT NULL);
CREATE TABLE IF NOT EXISTS widget.orders (
	order_id serial PRIMARY KEY, product_id integer NOT NULL, status text NOT NULL)`

// The topic on which the workflow receives the status of the payment, and the events that it publishes.
const (
	paymentStatus = "payment_status"
	paymentID     = "payment_id"
	orderID       = "order_id"
)

// answerTimeout is how long an endpoint waits for an event of the workflow, as in the example.
const answerTimeout = time.Minute

// options are those of the process of a store.
type options struct {
	DatabaseURL  string
	Product      int           // the id of the product that the store sells
	Timeout      time.Duration // of the wait for the payment
	Transactions bool          // each statement runs in a transaction of a datasource, not in a step
	Pause        string        // where the workflow waits for a line on standard input: "before return"
}

// store is the example.
type store struct {
	options
	db     *pgxpool.Pool
	source *dbos.DataSource
	ran    atomic.Value // the name of the last step that ran in a transaction
	paused atomic.Bool
}

// variable is the environment variable with the options of a store.
const variable = "WIDGET_STORE"

// Child runs the store, and exits, if [Run] has started this process for that.
func Child() {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return
	}
	s := &store{}
	err := json.Unmarshal([]byte(text), &s.options)
	if err == nil {
		err = s.run(context.Background())
	}
	fmt.Fprintln(os.Stderr, "widget store:", err)
	os.Exit(1)
}

// run serves the endpoints of the store. It prints their address, and later what happens to the workflow.
func (s *store) run(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(s.DatabaseURL)
	if err != nil {
		return err
	}
	config.ConnConfig.Tracer = s
	if s.db, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	d, err := dbos.NewContext(ctx, dbos.Config{
		AppName: "widget-store", ApplicationVersion: "1", DatabaseURL: s.DatabaseURL, DatabaseSchema: schema,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	if s.source, err = dbos.NewDataSource(d, s.db, dbos.WithDataSourceSchema(schema)); err != nil {
		return err
	}
	dbos.RegisterWorkflow(d, s.checkout, dbos.WithWorkflowName("checkout"))
	dbos.RegisterWorkflow(d, s.dispatch, dbos.WithWorkflowName("dispatch"))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("address", listener.Addr())
	if err := dbos.Launch(d); err != nil { // recovers workflows, which may print
		return err
	}
	return http.Serve(listener, s.endpoints(d))
}

// schema is that of the tables of DBOS.
const schema = "widget_dbos"

// endpoints returns the endpoint that starts a checkout and that to which the payment provider reports.
func (s *store) endpoints(d dbos.Context) http.Handler {
	answer := func(w http.ResponseWriter, id, event string, err error) {
		var value string
		if err == nil {
			value, err = dbos.GetEvent[string](d, id, event, answerTimeout)
		}
		if err != nil || value == "" {
			http.Error(w, fmt.Sprint("failed: ", err), http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte(value))
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /checkout/{key}", func(w http.ResponseWriter, r *http.Request) {
		key := r.PathValue("key")
		_, err := dbos.RunWorkflow(d, s.checkout, "", dbos.WithWorkflowID(key))
		answer(w, key, paymentID, err)
	})
	mux.HandleFunc("POST /payment_webhook/{id}/{status}", func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("id")
		answer(w, id, orderID, dbos.Send(d, id, r.PathValue("status"), paymentStatus))
	})
	return mux
}

// checkout is the workflow of an order.
func (s *store) checkout(ctx dbos.Context, _ string) (string, error) {
	id, err := dbos.GetWorkflowID(ctx)
	if err != nil {
		return "", err
	}
	order, err := s.step(ctx, "create",
		`INSERT INTO widget.orders (product_id, status) VALUES ($1, 'pending') RETURNING order_id`, s.Product)
	if err != nil {
		return "", err
	}
	reserved, err := s.step(ctx, "reserve",
		`WITH reserved AS (UPDATE widget.products SET inventory = inventory - 1
			WHERE product_id = $1 AND inventory > 0 RETURNING 1) SELECT count(*) FROM reserved`, s.Product)
	if err != nil || reserved == 0 {
		s.setStatus(ctx, order, "cancelled")
		return "", dbos.SetEvent(ctx, paymentID, "")
	}
	if err := dbos.SetEvent(ctx, paymentID, id); err != nil {
		return "", err
	}
	status, err := dbos.Recv[string](ctx, paymentStatus, s.Timeout)
	if err != nil || status != "paid" {
		fmt.Println("Recv:", err)
		_, _ = s.step(ctx, "return",
			`UPDATE widget.products SET inventory = inventory + 1 WHERE product_id = $1 RETURNING inventory`, s.Product)
		s.setStatus(ctx, order, "cancelled")
	} else {
		s.setStatus(ctx, order, "paid")
		_, _ = dbos.RunWorkflow(ctx, s.dispatch, order)
	}
	return "", dbos.SetEvent(ctx, orderID, strconv.Itoa(order))
}

// dispatch is the workflow of a paid order.
func (s *store) dispatch(ctx dbos.Context, order int) (string, error) {
	s.setStatus(ctx, order, "dispatched")
	return "", nil
}

func (s *store) setStatus(ctx dbos.Context, order int, status string) {
	_, _ = s.step(ctx, status,
		`UPDATE widget.orders SET status = $2 WHERE order_id = $1 RETURNING order_id`, order, status)
}

// step runs a statement that returns a number.
func (s *store) step(ctx dbos.Context, name, statement string, args ...any) (n int, err error) {
	if s.Transactions {
		return dbos.RunAsTransaction(ctx, s.source, func(ctx context.Context, tx dbos.Tx) (n int, err error) {
			s.pause("before " + name)
			s.ran.Store(name)
			err = tx.QueryRow(ctx, statement, args...).Scan(&n)
			return n, report(name, err)
		}, dbos.WithStepName(name))
	}
	return dbos.RunAsStep(ctx, func(ctx context.Context) (n int, err error) {
		s.pause("before " + name)
		err = s.db.QueryRow(ctx, statement, args...).Scan(&n)
		s.pause("after " + name)
		return n, report(name, err)
	}, dbos.WithStepName(name))
}

// report prints and returns the error of a step.
func report(name string, err error) error {
	if err != nil {
		fmt.Println("failed", name, err)
	}
	return err
}

// pause waits for a line once, if the options say so.
func (s *store) pause(where string) {
	if where == s.Pause && s.paused.CompareAndSwap(false, true) {
		fmt.Println("paused", where)
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	}
}

// TraceQueryStart keeps the statement for [store.TraceQueryEnd].
func (s *store) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, s, data.SQL)
}

// TraceQueryEnd pauses after the commit of a transaction, of which DBOS does not know yet.
func (s *store) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	if name, ok := s.ran.Load().(string); ok && data.Err == nil && ctx.Value(s) == "commit" {
		s.pause("after " + name)
	}
}
