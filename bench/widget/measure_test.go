package widget

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/devstack"
)

// Finding is the answer to a question.
type Finding struct {
	Question string
	Happened Outcome
	Kept     bool   // no payment is lost, and the stock is that without the orders that were dispatched
	Expected string // by the promise
	Source   string // the address of the page that describes what happened
}

// Outcome is what the orders of a question left when their workflows had ended. It is that of the store of the question
// only, because each question has a product of its own.
type Outcome struct {
	Orders  map[string]int // by their status
	Answers map[int]int    // to payments, by the HTTP status
	Unread  int            // payments that no workflow has read
	Missing int            // units that are neither in stock nor dispatched; negative if the stock has too many
	Errors  []string       // of Recv, except its timeout, and of the steps
}

// String returns the outcome in words.
func (o Outcome) String() string {
	var parts []string
	for _, status := range slices.Sorted(maps.Keys(o.Orders)) {
		parts = append(parts, fmt.Sprintf("orders %s: %d", status, o.Orders[status]))
	}
	for _, code := range slices.Sorted(maps.Keys(o.Answers)) {
		parts = append(parts, fmt.Sprintf("payments answered with %d: %d", code, o.Answers[code]))
	}
	if o.Unread > 0 {
		parts = append(parts, fmt.Sprintf("payments that no workflow read: %d", o.Unread))
	}
	switch {
	case o.Missing > 0:
		parts = append(parts, fmt.Sprintf("units missing in stock: %d", o.Missing))
	case o.Missing < 0:
		parts = append(parts, fmt.Sprintf("units too many in stock: %d", -o.Missing))
	}
	return strings.Join(parts, "; ")
}

// question is a question of [Run].
type question struct {
	text, expected, source string
	options
	orders int
	ask    func(ctx context.Context, r *run) error
}

// The waits for a payment: that of the questions in which a payment comes in time, and that of the others.
const (
	long  = 30 * time.Second
	short = time.Second
)

// The pages that describe what happens.
const (
	storePage        = "https://docs.dbos.dev/golang/examples/widget-store"
	stepPage         = "https://docs.dbos.dev/golang/tutorials/step-tutorial"
	transactionPage  = "https://docs.dbos.dev/golang/tutorials/transaction-tutorial#guarantees"
	sources          = "https://github.com/dbos-inc/dbos-transact-golang/blob/v1.8.0/dbos/"
	retrySource      = sources + "internal/sysdb/dialect.go#L263-L308"
	datasourceSource = sources + "datasource.go#L547-L553"
)

// questions returns the questions.
func questions() []question {
	all := []question{
		{"A payment comes after the timeout.", "refused, or refunded", storePage,
			options{Timeout: short}, 1, payLate},
		{"40 payments come from 100 ms before to 100 ms after the timeout.", "each is used, refused, or refunded",
			storePage, options{Timeout: short}, 40, payAtTimeout},
		{"PostgreSQL is shut down and started during the wait, and then the payment comes.", "dispatched", retrySource,
			options{Timeout: long}, 1, restartWhileWaiting},
		{"PostgreSQL is shut down during the wait, and started after the timeout.", "cancelled, and the unit is back",
			retrySource, options{Timeout: short}, 1, downAtTimeout},
		{"PostgreSQL cancels the statement with which Recv takes a payment, as statement_timeout does.", "dispatched",
			retrySource, options{Timeout: long}, 1, cancelWhileTaking},
		{"PostgreSQL crashes and is started while Recv takes a payment.", "dispatched", retrySource,
			options{Timeout: long}, 1, crashWhileTaking},
		{"PostgreSQL is down while the unit is returned, in a step.", "cancelled, and the unit is back", stepPage,
			options{Timeout: short, Pause: "before return"}, 1, downWhileReturning},
		{"PostgreSQL is down while the unit is returned, in a transaction.", "cancelled, and the unit is back",
			datasourceSource, options{Timeout: short, Pause: "before return", Transactions: true}, 1, downWhileReturning},
		{"PostgreSQL crashes while the unit is returned, in a transaction.", "cancelled, and the unit is back",
			retrySource, options{Timeout: short, Pause: "before return", Transactions: true}, 1, crashWhileReturning},
	}
	for _, name := range []string{"create", "reserve", "return"} {
		text := "The process is killed after the commit of \"" + name + "\", before its checkpoint, in a "
		all = append(all,
			question{text + "step.", "one order, cancelled, and the unit is back", stepPage,
				options{Timeout: short, Pause: "after " + name}, 1, killAndRecover},
			question{text + "transaction.", "one order, cancelled, and the unit is back", transactionPage,
				options{Timeout: short, Pause: "after " + name, Transactions: true}, 1, killAndRecover})
	}
	return all
}

func payLate(ctx context.Context, r *run) error {
	if err := errors.Join(r.buy(ctx, 0), r.ended(ctx)); err != nil {
		return err
	}
	return r.pay(ctx, 0)
}

func payAtTimeout(ctx context.Context, r *run) error {
	var customers errgroup.Group
	for i := range r.orders {
		customers.Go(func() error {
			if err := r.buy(ctx, i); err != nil {
				return err
			}
			const spread = 200 * time.Millisecond
			<-time.After(short - spread/2 + spread*time.Duration(i)/time.Duration(r.orders))
			return r.pay(ctx, i)
		})
	}
	return customers.Wait()
}

func restartWhileWaiting(ctx context.Context, r *run) error {
	if err := errors.Join(r.buy(ctx, 0), r.shutdown(), r.server.Restart(ctx)); err != nil {
		return err
	}
	return r.pay(ctx, 0)
}

// shutdown shuts the server down as pg_ctl stop does. [devstack.Postgres.Stop] is more like a crash.
func (r *run) shutdown() error {
	if err := syscall.Kill(r.server.Pid(), syscall.SIGINT); err != nil {
		return err
	}
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
		if syscall.Kill(r.server.Pid(), 0) != nil {
			return r.server.Stop() // which only waits
		}
	}
	return fmt.Errorf("waited %v for the shutdown of PostgreSQL", limit)
}

func downAtTimeout(ctx context.Context, r *run) error {
	if err := errors.Join(r.buy(ctx, 0), r.shutdown()); err != nil {
		return err
	}
	<-time.After(2 * short)
	return r.server.Restart(ctx)
}

func downWhileReturning(ctx context.Context, r *run) error { return r.whileReturning(ctx, r.shutdown) }

func crashWhileReturning(ctx context.Context, r *run) error {
	return r.whileReturning(ctx, r.server.Stop)
}

// whileReturning stops the server before the statement that returns the unit, and starts it after the statement failed.
func (r *run) whileReturning(ctx context.Context, stop func() error) error {
	if err := r.buy(ctx, 0); err != nil {
		return err
	}
	if _, err := r.await("paused"); err != nil {
		return err
	}
	if err := stop(); err != nil {
		return err
	}
	if _, err := io.WriteString(r.child.in, "\n"); err != nil {
		return err
	}
	_, err := r.await("failed return")
	return errors.Join(err, r.server.Restart(ctx))
}

func cancelWhileTaking(ctx context.Context, r *run) error {
	return r.whileTaking(ctx, func(tx pgx.Tx, pid int) error {
		_, err := tx.Exec(ctx, `SELECT pg_cancel_backend($1)`, pid)
		return errors.Join(err, tx.Commit(ctx))
	})
}

func crashWhileTaking(ctx context.Context, r *run) error {
	return r.whileTaking(ctx, func(pgx.Tx, int) error { return errors.Join(r.server.Stop(), r.server.Restart(ctx)) })
}

// whileTaking pays an order, and calls fault while the session pid of the workflow takes the payment. The session waits
// for a lock that tx holds.
func (r *run) whileTaking(ctx context.Context, fault func(tx pgx.Tx, pid int) error) error {
	if err := r.buy(ctx, 0); err != nil {
		return err
	}
	var one int
	err := r.until(ctx, &one, `SELECT 1 FROM widget_dbos.operation_outputs
		WHERE workflow_uuid = $1 AND function_name = 'DBOS.sleep'`, r.key(0)) // then Recv waits
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, r.DatabaseURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }() // a crash has closed it
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `SELECT FROM widget_dbos.workflow_status WHERE workflow_uuid = $1 FOR NO KEY UPDATE`, r.key(0))
	if err != nil {
		return err
	}
	var payment errgroup.Group
	payment.Go(func() error { return r.pay(ctx, 0) })
	var pid int
	if err = r.until(ctx, &pid, `SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'`); err == nil {
		err = fault(tx, pid)
	}
	return errors.Join(err, payment.Wait())
}

func killAndRecover(ctx context.Context, r *run) error {
	bought := make(chan error, 1)
	go func() { bought <- r.buy(ctx, 0) }() // gets no answer if the process is killed before
	if _, err := r.await("paused"); err != nil {
		return err
	}
	r.child.kill()
	<-bought
	r.Pause = ""
	return r.start(ctx)
}

// Run asks all questions on a server, which stops and starts. The children run the executable of this process, whose
// main function calls [Child] first. Run writes nothing outside of the schemas widget and widget_dbos.
func Run(ctx context.Context, server *devstack.Postgres) ([]Finding, error) {
	var findings []Finding
	for _, q := range questions() {
		r := &run{question: q, server: server}
		if err := r.answer(ctx); err != nil {
			return findings, fmt.Errorf("%s: %w", q.text, err)
		}
		findings = append(findings, Finding{q.text, r.outcome, r.kept(), q.expected, q.source})
	}
	return findings, nil
}

// run is a question while it is answered.
type run struct {
	question
	server *devstack.Postgres
	child  *child

	mu      sync.Mutex // guards Answers of the outcome
	outcome Outcome
}

// kept reports whether the promise was kept.
func (r *run) kept() bool {
	o := r.outcome
	all := 0
	for _, n := range o.Orders {
		all += n
	}
	return o.Unread == 0 && o.Missing == 0 && all == r.orders && o.Orders["cancelled"]+o.Orders["dispatched"] == all
}

// stock is the number of units in stock before a question.
const stock = 100

// answer answers the question.
func (r *run) answer(ctx context.Context) (err error) {
	r.DatabaseURL, r.outcome.Orders, r.outcome.Answers = r.server.URL(), map[string]int{}, map[int]int{}
	conn, err := pgx.Connect(ctx, r.DatabaseURL)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, tables)
	if err == nil {
		err = conn.QueryRow(ctx, `INSERT INTO widget.products (inventory) VALUES ($1) RETURNING product_id`, stock).
			Scan(&r.Product)
	}
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return err
	}
	if err := r.start(ctx); err != nil {
		return err
	}
	defer func() { r.child.kill() }() // by then it may be another child
	if err := r.ask(ctx, r); err != nil {
		return err
	}
	if err := r.ended(ctx); err != nil {
		return err
	}
	for _, line := range r.child.out.lines() {
		if strings.HasPrefix(line, "Recv: ") && !strings.Contains(line, "no message received within") ||
			strings.HasPrefix(line, "failed ") {
			r.outcome.Errors = append(r.outcome.Errors, line)
		}
	}
	return r.look(ctx)
}

// key returns the id of the workflow of an order.
func (r *run) key(order int) string { return fmt.Sprintf("%d-%d", r.Product, order) }

// buy places an order, and waits until its customer could pay.
func (r *run) buy(ctx context.Context, order int) error {
	code, err := r.post(ctx, "/checkout/"+r.key(order))
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("the checkout was answered with %d, want 200", code)
	}
	return err
}

// pay reports that an order is paid.
func (r *run) pay(ctx context.Context, order int) error {
	code, err := r.post(ctx, "/payment_webhook/"+r.key(order)+"/paid")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcome.Answers[code]++
	return err
}

func (r *run) post(ctx context.Context, path string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.child.address+path, http.NoBody)
	if err != nil {
		return 0, err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	return response.StatusCode, nil
}

// ended waits until all workflows have ended.
func (r *run) ended(ctx context.Context) error {
	var one int
	return r.until(ctx, &one, `SELECT 1 WHERE NOT EXISTS (
		SELECT FROM widget_dbos.workflow_status WHERE status IN ('PENDING', 'ENQUEUED', 'DELAYED'))`)
}

// limit is how long a state may take.
const limit = time.Minute

// until waits until a query returns a row, and scans it. Each query has a connection of its own, because the server
// restarts.
func (r *run) until(ctx context.Context, value *int, query string, args ...any) error {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); <-time.After(20 * time.Millisecond) {
		conn, err := pgx.Connect(ctx, r.DatabaseURL)
		if err != nil {
			return err
		}
		err = errors.Join(conn.QueryRow(ctx, query, args...).Scan(value), conn.Close(ctx))
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
	}
	return fmt.Errorf("waited %v for a row of %s; the store printed %q", limit, query, r.child.out.lines())
}

// look reads the outcome from the tables.
func (r *run) look(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, r.DatabaseURL)
	if err != nil {
		return err
	}
	// An error of Query is also that of ForEachRow.
	rows, _ := conn.Query(ctx,
		`SELECT status, count(*) FROM widget.orders WHERE product_id = $1 GROUP BY status`, r.Product)
	var status string
	var n, inventory int
	_, err = pgx.ForEachRow(rows, []any{&status, &n}, func() error {
		r.outcome.Orders[status] = n
		return nil
	})
	if err == nil {
		err = conn.QueryRow(ctx, `SELECT inventory, (SELECT count(*) FROM widget_dbos.notifications
			WHERE NOT consumed AND destination_uuid LIKE product_id || '-%') FROM widget.products WHERE product_id = $1`,
			r.Product).Scan(&inventory, &r.outcome.Unread)
	}
	r.outcome.Missing = stock - inventory - r.outcome.Orders["dispatched"]
	return errors.Join(err, conn.Close(ctx))
}

// child is the process of a store.
type child struct {
	address string
	in      io.Writer
	out     output
	kill    func() // also waits until the process has ended
}

// start starts a child. An earlier one was killed.
func (r *run) start(ctx context.Context) error {
	given, err := json.Marshal(r.options)
	if err != nil {
		return err
	}
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	r.child = &child{}
	cmd := exec.CommandContext(ctx, executable)
	cmd.Env = append(os.Environ(), variable+"="+string(given))
	cmd.Stdout, cmd.Stderr = &r.child.out, &r.child.out
	if r.child.in, err = cmd.StdinPipe(); err != nil {
		return err
	}
	ended, err := devstack.StartChild(cmd)
	if err != nil {
		return err
	}
	r.child.kill = func() {
		_ = cmd.Process.Kill() // the error says that it has ended
		<-ended
	}
	if r.child.address, err = r.await("address "); err != nil {
		r.child.kill()
	}
	return err
}

// await waits until the child prints a line with a prefix, and returns the rest of the line.
func (r *run) await(prefix string) (string, error) {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
		for _, line := range r.child.out.lines() {
			if rest, ok := strings.CutPrefix(line, prefix); ok {
				return rest, nil
			}
		}
	}
	return "", fmt.Errorf("waited %v for %q, the store printed %q", limit, prefix, r.child.out.lines())
}

// output is what a child has printed.
type output struct {
	mu   sync.Mutex
	text []byte
}

// Write implements [io.Writer].
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	return len(p), nil
}

// lines returns the complete lines.
func (o *output) lines() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines := strings.Split(string(o.text), "\n")
	return lines[:len(lines)-1]
}
