package postgres_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/testenv"
)

// TestKeyGate has 150 callers want one key of a gate with three slots: three enter, those that nobody makes room for
// are refused in time, and callers with other keys wait for none of them.
func TestKeyGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots, callers, wait = 3, 150, 200 * time.Millisecond
		g := postgres.NewKeyGate(slots, wait)
		began := time.Now()
		var inside, entered, busy atomic.Int64
		next, end := make(chan struct{}), make(chan struct{}) // next lets one caller leave, end lets all leave
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				leave, err := g.Enter(t.Context(), "hot")
				if err != nil {
					busy.Add(1)
					if !errors.Is(err, postgres.ErrBusy) || time.Since(began) != wait {
						t.Errorf("after %v Enter returns %v; want ErrBusy after %v", time.Since(began), err, wait)
					}
					return
				}
				entered.Add(1)
				if n := inside.Add(1); n > slots {
					t.Errorf("%d callers are inside, want at most %d", n, slots)
				}
				select {
				case <-next:
				case <-end:
				}
				inside.Add(-1)
				leave()
			})
		}
		synctest.Wait()
		for range 10 {
			next <- struct{}{}
			synctest.Wait()
		}
		if entered.Load() != slots+10 || busy.Load() != 0 {
			t.Errorf("%d callers have entered, %d were refused; want %d and none",
				entered.Load(), busy.Load(), slots+10)
		}
		for _, key := range []string{"a", "b", "c"} {
			leave, err := g.Enter(t.Context(), key, "other")
			if err != nil || time.Since(began) != 0 {
				t.Fatalf("after %v Enter with the key %q returns %v, want no error at once", time.Since(began), key,
					err)
			}
			leave()
		}
		if _, err := g.Enter(t.Context(), "free", "hot"); !errors.Is(err, postgres.ErrBusy) {
			t.Errorf("Enter with a free key and a full one returns %v, want ErrBusy", err)
		}
		synctest.Wait()
		if want := int64(callers - slots - 10); busy.Load() != want {
			t.Errorf("%d callers were refused, want %d", busy.Load(), want)
		}
		close(end)
		wg.Wait()
		if n := g.Keys(); n != 0 {
			t.Errorf("the gate has %d keys after all callers have left, want none", n)
		}
	})
}

// TestKeyGateOrder checks that callers who name the same keys in different orders do not block each other, and that a
// key that is named twice takes one slot.
func TestKeyGateOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := postgres.NewKeyGate(1, time.Second)
		began := time.Now()
		leave, err := g.Enter(t.Context(), "a", "b", "a")
		testenv.Must(t, err)
		var wg sync.WaitGroup
		for _, keys := range [][]string{{"a", "b"}, {"b", "a"}} {
			wg.Go(func() {
				leave, err := g.Enter(t.Context(), keys...)
				if err != nil || time.Since(began) != 0 {
					t.Errorf("%v: Enter returns %v after %v, want a slot of each key at once",
						keys, err, time.Since(began))
					return
				}
				leave()
			})
		}
		synctest.Wait() // both wait for their first key
		leave()
		wg.Wait()
	})
}

// TestKeyGateWithEndedContext checks that a caller whose context ends gives its place up at once.
func TestKeyGateWithEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := postgres.NewKeyGate(1, time.Second)
		began := time.Now()
		leave, err := g.Enter(t.Context(), "b")
		testenv.Must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			_, err := g.Enter(ctx, "a", "b", "c")
			result <- err
		}()
		synctest.Wait()
		cancel()
		err = <-result
		if !errors.Is(err, context.Canceled) || errors.Is(err, postgres.ErrBusy) || time.Since(began) != 0 {
			t.Errorf("after %v Enter returns %v, want the error of its context at once", time.Since(began), err)
		}
		if n := g.Keys(); n != 1 {
			t.Errorf("the gate has %d keys, want only the one whose slot is taken", n)
		}
		leave()
		if n := g.Keys(); n != 0 {
			t.Errorf("the gate has %d keys after all callers have left, want none", n)
		}
	})
}
