package reconcile

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"example.com/shop/internal/testenv"
)

// TestHungSweepLosesItsLock has a sweep hang while it holds the lock, and another instance that wants it.
func TestHungSweepLosesItsLock(t *testing.T) {
	db, err := sql.Open("pgx", testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	table, hanging := newFakes(1)
	hung, goOn := make(chan struct{}), make(chan struct{})
	hanging.during = func(method string) {
		if method == "Locate" {
			close(hung)
			<-goOn
		}
	}
	_, working := newFakes(1)
	a, b := newReconciler(t, table, hanging), newReconciler(t, table, working)
	a.db, b.db = db, db
	a.lockIdle = 500 * time.Millisecond
	ended := make(chan error, 1)
	go func() {
		_, err := a.Sweep(t.Context())
		ended <- err
	}()
	<-hung

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := b.Sweep(ctx)
		if err == nil {
			break
		}
		if !errors.Is(err, ErrBusy) {
			t.Fatalf("sweep beside one that hangs: %v", err)
		}
		<-tick.C
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Errorf("the sweep that goes on: %v", err)
	}
}
