package batch_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/shop/internal/batch"
)

// stepper is a handler of batches that waits with each batch until the test releases one.
type stepper[T any] struct {
	started chan []T
	proceed chan struct{}
}

func newStepper[T any]() *stepper[T] {
	return &stepper[T]{make(chan []T, 100), make(chan struct{})}
}

func (s *stepper[T]) run(batch []T) {
	s.started <- batch
	<-s.proceed
}

// batches returns the batches that have started since the last call.
func (s *stepper[T]) batches() (batches [][]T) {
	synctest.Wait()
	for len(s.started) > 0 {
		batches = append(batches, <-s.started)
	}
	return batches
}

// TestLanesFormBatches checks that an item does not wait for others while a lane is free, that the items that arrive
// while all lanes are busy make up the next batches, in order of arrival, and that a batch has no more items than its
// size.
func TestLanesFormBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStepper[int]()
		l := batch.NewLanes(s.run, 2, 3, time.Hour)
		add := func(from, to int) {
			for i := from; i <= to; i++ {
				if !l.Add(i) {
					t.Errorf("item %d is not taken", i)
				}
			}
		}
		check := func(when, want string) {
			t.Helper()
			batches := s.batches()
			slices.SortFunc(batches, slices.Compare)
			if got := fmt.Sprint(batches); got != want {
				t.Errorf("%s: the batches %s have started, want %s", when, got, want)
			}
		}
		add(1, 2)
		check("both lanes are free", "[[1] [2]]")
		add(3, 9)
		check("both lanes are busy", "[]")
		s.proceed <- struct{}{}
		check("one lane is free again", "[[3 4 5]]")
		s.proceed <- struct{}{}
		s.proceed <- struct{}{}
		check("both lanes are free again", "[[6 7 8] [9]]")
		s.proceed <- struct{}{}
		s.proceed <- struct{}{}
		check("the queue is empty", "[]")
		add(10, 10)
		check("the lanes were idle", "[[10]]")
		add(11, 12)
		check("one lane is busy", "[[11]]")
		close(s.proceed)
		check("all proceed", "[[12]]")
	})
}

// TestLanesRejectWhileFirstItemWaitsTooLong checks that no items are taken while the first item of its queue has
// waited for longer than the limit.
func TestLanesRejectWhileFirstItemWaitsTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 500 * time.Millisecond
		s := newStepper[string]()
		l := batch.NewLanes(s.run, 1, 1, limit)
		check := func(when string, want bool) {
			t.Helper()
			if l.Overloaded() == want || l.Add(when) != want {
				t.Errorf("%s: an item is taken: %v, want %v", when, !want, want)
			}
		}
		check("idle", true)
		<-time.After(time.Hour)
		check("a batch takes long, and the queue is empty", true)
		<-time.After(limit)
		check("the first item has waited as long as it may", true)
		<-time.After(1)
		check("the first item has waited too long", false)
		s.proceed <- struct{}{}
		synctest.Wait()
		check("the next item is the first, and arrived later", true)
		<-time.After(limit)
		check("the next item has waited too long", false)
		if !l.Remove("the first item has waited as long as it may") {
			t.Error("the first item is not in the queue")
		}
		check("the first item was removed, and the next one arrived as late", true)
		close(s.proceed)
		synctest.Wait()
		check("idle again", true)
		synctest.Wait()
	})
}

// TestLanesHandleEachItemOnce adds items in parallel, and removes some of them. Each item is handled or removed once.
// With one lane, the items of each goroutine are handled in their order.
func TestLanesHandleEachItemOnce(t *testing.T) {
	const goroutines, items, size = 32, 300, 7
	type item struct{ goroutine, number int }
	for _, lanes := range []int{1, 2, 5} {
		synctest.Test(t, func(t *testing.T) {
			var running, most, handled atomic.Int64
			var times [goroutines][items]atomic.Int64
			var last [goroutines]atomic.Int64 // the last handled item, from 1
			run := func(batch []item) {
				n := running.Add(1)
				defer running.Add(-1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				if len(batch) == 0 || len(batch) > size {
					t.Errorf("a batch has %d items, want 1 to %d", len(batch), size)
				}
				for _, i := range batch {
					times[i.goroutine][i.number].Add(1)
					if before := last[i.goroutine].Swap(int64(i.number) + 1); lanes == 1 && before > int64(i.number) {
						t.Errorf("goroutine %d: item %d is handled after item %d", i.goroutine, i.number, before-1)
					}
				}
				handled.Add(int64(len(batch)))
			}
			l := batch.NewLanes(run, lanes, size, time.Hour)
			var removed atomic.Int64
			var wg sync.WaitGroup
			for goroutine := range goroutines {
				wg.Go(func() {
					for number := range items {
						i := item{goroutine, number}
						l.Add(i)
						if number%5 == 0 && l.Remove(i) {
							removed.Add(1)
							times[goroutine][number].Add(1)
						}
					}
				})
			}
			wg.Wait()
			synctest.Wait()
			if handled.Load()+removed.Load() != goroutines*items || running.Load() != 0 {
				t.Errorf("%d items were handled and %d removed, %d batches are under way; want %d items in all and "+
					"no batch",
					handled.Load(), removed.Load(), running.Load(), goroutines*items)
			}
			for goroutine := range goroutines {
				for number := range items {
					if n := times[goroutine][number].Load(); n != 1 {
						t.Errorf("item %d of goroutine %d was handled or removed %d times, want once", number,
							goroutine, n)
					}
				}
			}
			if most.Load() > int64(lanes) {
				t.Errorf("%d batches were under way at the same time, want at most %d", most.Load(), lanes)
			}
			t.Logf("%d lanes: %d of %d items removed", lanes, removed.Load(), goroutines*items)
		})
	}
}
