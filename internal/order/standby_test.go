package order_test

import (
	"context"
	"database/sql"
	"net/http"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/migrations"
)

// TestCommitsWaitForStandby changes orders on a primary whose synchronous standby is away. It ends the waits of the
// commits. No call succeeds, not even the repetition of one that is committed, and no task is taken for one without an
// order.
func TestCommitsWaitForStandby(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t, nil)
	observer, err := sql.Open("pgx", server.URL())
	testenv.Must(t, err)
	defer observer.Close()
	_, err = migrations.Up(t.Context(), observer)
	testenv.Must(t, err)
	s := ordertest.NewAt(t, server.URL())
	customer, product := s.Customer(t), s.Product(t, 10)
	change := func(do func(ctx context.Context, customer, id uuid.UUID) (*order.Order, error)) func(context.Context) error {
		id := s.MustPlace(t, customer, line(product, 1)).ID
		return func(ctx context.Context) error {
			_, err := do(ctx, customer, id)
			return err
		}
	}
	waiting := func() (pid int, err error) { // 0: no commit waits
		err = observer.QueryRowContext(t.Context(),
			`SELECT coalesce(max(pid), 0) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`).Scan(&pid)
		return pid, err
	}
	cancelled := func(pid int, _ context.CancelFunc) { testenv.Exec(t, observer, `SELECT pg_cancel_backend($1)`, pid) }
	gone := func(_ int, cancel context.CancelFunc) { cancel() }
	crashed := func(pid int, _ context.CancelFunc) {
		testenv.Must(t, syscall.Kill(pid, syscall.SIGKILL))
		testenv.Eventually(t, "the server has recovered", func() bool {
			pid, err := waiting()
			return err == nil && pid == 0
		})
	}
	calls := []struct {
		name string
		do   func(context.Context) error
		end  func(pid int, cancel context.CancelFunc) // ends the wait of its commit
	}{
		{"placement", func(ctx context.Context) error {
			_, _, err := s.Place(ctx, customer, order.Placement{IdempotencyKey: "key",
				Lines: []order.Line{line(product, 1)}})
			return err
		}, cancelled},
		{"payment", change(s.Pay), cancelled},
		{"cancellation", change(s.Cancel), cancelled},
		{"extension", change(s.Extend), cancelled},
		{"payment whose client goes away", change(s.Pay), gone},
		{"payment whose session crashes", change(s.Pay), crashed},
	}
	testenv.Must(t, server.AwaitStandby(t.Context()))
	for _, c := range calls {
		for _, end := range []func(int, context.CancelFunc){c.end, cancelled} { // the second time, the change is committed
			ctx, cancel := context.WithCancel(t.Context())
			done := async(func() error { return c.do(ctx) })
			waited := false
			testenv.Eventually(t, "the end of a "+c.name, func() bool {
				if pid, err := waiting(); err == nil && pid != 0 {
					waited = true
					end(pid, cancel)
				}
				return len(done) > 0
			})
			cancel()
			err := <-done
			if !waited || err == nil || rest.AsError(err).Class.Status != http.StatusServiceUnavailable {
				t.Errorf("%s: it waited: %v; the error is %v, want a wait and an unknown outcome", c.name, waited, err)
			}
		}
	}
}
