package order_test

import (
	"database/sql"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/migrations"
)

// TestCommitsWaitForStandby places orders on a primary whose synchronous standby is away, and cancels the waits of their
// commits. No placement succeeds, not even the repetition of one that is committed, and no task is taken for an orphan.
func TestCommitsWaitForStandby(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t, nil)
	observer, err := sql.Open("pgx", server.URL())
	testenv.Must(t, err)
	defer observer.Close()
	_, err = migrations.Up(t.Context(), observer)
	testenv.Must(t, err)
	s := ordertest.NewAt(t, server.URL())
	// A sweep locks the row of an earlier one.
	s.Exec(t, `INSERT INTO reconcile_reports (kind, report) VALUES ($1, '{}')`, order.CancelKind)
	customer := s.Customer(t)
	placement := order.Placement{IdempotencyKey: "placed", Lines: []order.Line{line(s.Product(t, 10), 1)}}
	_, _, err = s.Place(t.Context(), customer, placement)
	testenv.Must(t, err)
	testenv.Must(t, server.AwaitStandby(t.Context()))

	place := func(key string) func() error {
		return func() error {
			p := placement
			p.IdempotencyKey = key
			_, _, err := s.Place(t.Context(), customer, p)
			return err
		}
	}
	unknown := func() error {
		_, err := s.Unknown(t.Context(), []string{uuid.NewString()})
		return err
	}
	for name, call := range map[string]func() error{
		"new placement": place("new"), "repeated placement": place("placed"), "lookup of orphans": unknown,
	} {
		done := make(chan error, 1)
		go func() { done <- call() }()
		var err error
		testenv.Eventually(t, name+" has ended", func() bool {
			testenv.Exec(t, observer, `SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
			select {
			case err = <-done:
				return true
			case <-time.After(time.Millisecond):
				return false
			}
		})
		if err == nil || rest.AsError(err).Class.Status != http.StatusServiceUnavailable {
			t.Errorf("%s: the error is %v, want one of an unknown outcome", name, err)
		}
	}

	testenv.Must(t, server.SetReadOnly(t.Context()))
	if err := unknown(); err == nil {
		t.Error("a server that was made read-only looks for orphans, want an error")
	}
}
