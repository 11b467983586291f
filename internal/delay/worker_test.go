package delay

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/testenv"
)

func newWorker(q *Queue, h Handler, cfg WorkerConfig) *Worker {
	return NewWorker(q, h, cfg, quiet(), nil)
}

func scheduleNow(t testing.TB, q *Queue, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := q.Schedule(t.Context(), In(id, -time.Second)); err != nil {
			t.Fatal(err)
		}
	}
}

func depth(t testing.TB, q *Queue) Depth {
	t.Helper()
	d, err := q.Depth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d.OldestDue = 0
	return d
}

func runOnce(t testing.TB, w *Worker) (int, time.Duration) {
	t.Helper()
	n, wait, err := w.RunOnce(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	return n, wait
}

// TestPoisonDoesNotDelayOthers puts one task that no handler can do into a batch. The others are done
// in the same claim, and the poisoned one alone fails.
func TestPoisonDoesNotDelayOthers(t *testing.T) {
	poisons := map[string]func() ([]Outcome, error){
		"error":          func() ([]Outcome, error) { return nil, errors.New("cannot") },
		"panic":          func() ([]Outcome, error) { panic("cannot") },
		"wrong outcomes": func() ([]Outcome, error) { return []Outcome{Done(), Done(), Done(), Done()}, nil },
	}
	for name, poison := range poisons {
		t.Run(name, func(t *testing.T) {
			q := newQueue(t, newRedis(t), 1)
			for i := range 100 {
				scheduleNow(t, q, strconv.Itoa(i))
			}
			calls := 0
			w := newWorker(q, func(_ context.Context, tasks []Task) ([]Outcome, error) {
				calls++
				if slices.ContainsFunc(tasks, func(task Task) bool { return task.ID == "37" }) {
					return poison()
				}
				return all(tasks, Done()), nil
			}, WorkerConfig{MaxAttempts: 2, BackoffMin: time.Hour, BackoffMax: time.Hour})

			if n, _ := runOnce(t, w); n != 100 {
				t.Fatalf("claimed %d tasks, want 100", n)
			}
			if got, want := depth(t, q), (Depth{Scheduled: 1}); got != want {
				t.Errorf("after the batch: %+v, want only the poisoned task, to be retried: %+v", got, want)
			}
			if calls > 20 {
				t.Errorf("the handler was called %d times, want about 2·log2(100)", calls)
			}

			// Its last attempt makes it a dead letter.
			scheduleNow(t, q, "37")
			runOnce(t, w)
			letters, err := q.DeadLetters(t.Context(), 0, 10)
			if err != nil || len(letters) != 1 || letters[0].ID != "37" || letters[0].Attempts != 2 || letters[0].Error == "" {
				t.Errorf("dead letters %+v, %v; want 37 with 2 attempts and its error", letters, err)
			}
		})
	}
}

func TestOutcomes(t *testing.T) {
	q := newQueue(t, newRedis(t), 1)
	scheduleNow(t, q, "done", "early", "fails")
	w := newWorker(q, func(_ context.Context, tasks []Task) ([]Outcome, error) {
		byID := map[string]Outcome{"done": Done(), "early": RetryIn(time.Hour), "fails": Fail(nil)}
		var outcomes []Outcome
		for _, task := range tasks {
			outcomes = append(outcomes, byID[task.ID])
		}
		return outcomes, nil
	}, WorkerConfig{BackoffMin: 4 * time.Hour, BackoffMax: 4 * time.Hour})
	runOnce(t, w)

	places, err := q.Locate(t.Context(), []string{"done", "early", "fails"})
	if err != nil {
		t.Fatal(err)
	}
	if p := places[0]; p.State != Absent {
		t.Errorf("done is %+v", p)
	}
	if p := places[1]; p.State != Scheduled || p.Left < 59*time.Minute || p.Left > time.Hour {
		t.Errorf("early is %+v, want due in an hour", p)
	}
	if p := places[2]; p.State != Scheduled || p.Left < 119*time.Minute || p.Left > 6*time.Hour {
		t.Errorf("fails is %+v, want due in 2 to 6 hours", p)
	}
	attempts, err := q.rdb.HGetAll(t.Context(), q.shards[0].attempts).Result()
	if err != nil || len(attempts) != 1 || attempts["fails"] != "1" {
		t.Errorf("attempts %v, %v; want only the failure counted", attempts, err)
	}
}

// TestWaitCoversRetries: the time until the next look is the retry's, where that is the sooner.
func TestWaitCoversRetries(t *testing.T) {
	q := newQueue(t, newRedis(t), 1)
	scheduleNow(t, q, "a")
	w := newWorker(q, func(_ context.Context, tasks []Task) ([]Outcome, error) {
		return all(tasks, RetryIn(3*time.Second)), nil
	}, WorkerConfig{MaxIdle: time.Hour, Lease: 2 * time.Hour})
	if _, wait := runOnce(t, w); wait > 3*time.Second {
		t.Errorf("would sleep %v, want at most the 3 s of the retry", wait)
	}
}

// TestWakeUp gives a sleeping worker, that would not look for an hour, tasks that are due at once: the first
// perhaps before the worker has subscribed to the hints.
func TestWakeUp(t *testing.T) {
	onEachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, 4)
		var delivered atomic.Int64
		w := newWorker(q, func(_ context.Context, tasks []Task) ([]Outcome, error) {
			delivered.Add(int64(len(tasks)))
			return all(tasks, Done()), nil
		}, WorkerConfig{MaxIdle: time.Hour})
		defer start(t, w)()
		for i := range 20 {
			before := delivered.Load()
			scheduleNow(t, q, strconv.Itoa(i))
			eventually(t, "woken by "+strconv.Itoa(i), func() bool { return delivered.Load() > before })
		}
	})
}

// start runs a worker and returns what stops it, and fails the test if it takes long to.
func start(t testing.TB, w *Worker) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("Run did not return")
		}
	}
}

// TestEachDeliveredOnce drains many tasks with several workers over several shards.
func TestEachDeliveredOnce(t *testing.T) {
	onEachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		const tasks = 10_000
		q := newQueue(t, rdb, 4)
		msgs := make([]Message, tasks)
		for i := range msgs {
			msgs[i] = In(strconv.Itoa(i), 0)
		}
		var mu sync.Mutex
		seen := map[string]int{}
		handle := func(_ context.Context, batch []Task) ([]Outcome, error) {
			mu.Lock()
			defer mu.Unlock()
			for _, task := range batch {
				seen[task.ID]++
			}
			return all(batch, Done()), nil
		}
		// A lease that outlasts any stall of the machine: nothing may be delivered twice here.
		for range 3 {
			defer start(t, newWorker(q, handle, WorkerConfig{Lease: time.Hour, MaxIdle: 100 * time.Millisecond}))()
		}
		if err := q.Schedule(t.Context(), msgs...); err != nil {
			t.Fatal(err)
		}
		eventually(t, "empty queue", func() bool { return depth(t, q) == Depth{} })
		mu.Lock()
		defer mu.Unlock()
		if len(seen) != tasks {
			t.Errorf("%d tasks were delivered, want %d", len(seen), tasks)
		}
		for id, n := range seen {
			if n != 1 {
				t.Errorf("%s was delivered %d times", id, n)
			}
		}
	})
}

// TestDeadWorkersLeaseExpires: what a killed worker held is delivered to another when the lease ends.
func TestDeadWorkersLeaseExpires(t *testing.T) {
	q := newQueue(t, newRedis(t), 1)
	scheduleNow(t, q, "a")
	killed, err := q.Claim(t.Context(), 0, 10, 300*time.Millisecond)
	if err != nil || len(killed.Tasks) != 1 {
		t.Fatal(killed, err)
	}
	var delivered atomic.Int64
	w := newWorker(q, func(_ context.Context, tasks []Task) ([]Outcome, error) {
		delivered.Add(1)
		return all(tasks, Done()), nil
	}, WorkerConfig{MaxIdle: time.Hour}) // no polling: it knows when the lease ends
	defer start(t, w)()
	eventually(t, "delivered again", func() bool { return delivered.Load() == 1 })
	if n, err := q.Ack(t.Context(), killed, "a"); err != nil || n != 0 {
		t.Errorf("the dead worker's ack counted: %d, %v", n, err)
	}
}

// TestSlowHandlerLosesItsLease settles a batch whose lease has gone to another: counted, not undone.
func TestSlowHandlerLosesItsLease(t *testing.T) {
	q := newQueue(t, newRedis(t), 1)
	scheduleNow(t, q, "a", "b")
	other := Batch{}
	w := newWorker(q, func(ctx context.Context, tasks []Task) ([]Outcome, error) {
		// Another worker finds the lease expired while this one still works.
		if err := q.rdb.ZAdd(ctx, q.shards[0].leased, redis.Z{Score: 1, Member: "a"}).Err(); err != nil {
			return nil, err
		}
		var err error
		other, err = q.Claim(ctx, 0, 10, time.Hour)
		return all(tasks, Done()), err
	}, WorkerConfig{})
	runOnce(t, w)
	if lost := testutil.ToFloat64(w.metrics.lost); lost != 1 {
		t.Errorf("%v leases counted as lost, want 1", lost)
	}
	if got, want := depth(t, q), (Depth{Leased: 1}); got != want {
		t.Errorf("%+v, want %+v: still the other's", got, want)
	}
	if n, err := q.Ack(t.Context(), other, "a"); err != nil || n != 1 {
		t.Errorf("the other's ack: %d, %v", n, err)
	}
}

// TestDrain stops a worker in the middle of a batch.
func TestDrain(t *testing.T) {
	tests := map[string]struct {
		drain  time.Duration
		handle func(ctx context.Context, release <-chan struct{}) error
		want   Depth
	}{
		"finishes and acks": {
			drain:  time.Hour,
			handle: func(_ context.Context, release <-chan struct{}) error { <-release; return nil },
		},
		"hands back what it cannot finish": {
			drain:  time.Millisecond,
			handle: func(ctx context.Context, _ <-chan struct{}) error { <-ctx.Done(); return ctx.Err() },
			want:   Depth{Due: 3},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			q := newQueue(t, newRedis(t), 1)
			scheduleNow(t, q, "a", "b", "c")
			started, release := make(chan struct{}), make(chan struct{})
			w := newWorker(q, func(ctx context.Context, tasks []Task) ([]Outcome, error) {
				close(started)
				if err := test.handle(ctx, release); err != nil {
					return nil, err
				}
				return all(tasks, Done()), nil
			}, WorkerConfig{Loops: 1, Lease: time.Hour, Drain: test.drain})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- w.Run(ctx) }()
			<-started
			cancel()
			close(release)
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			if got := depth(t, q); got != test.want {
				t.Errorf("left behind %+v, want %+v", got, test.want)
			}
			if n, err := q.rdb.HLen(t.Context(), q.shards[0].attempts).Result(); err != nil || n != 0 {
				t.Errorf("stopping counted %d attempts (%v)", n, err)
			}
		})
	}
}

// TestRedisGone: a worker outlives its Redis and goes on when it is back.
func TestRedisGone(t *testing.T) {
	server := testenv.RedisServer(t)
	q := newQueue(t, connect(t, server.URL()), 1)
	var delivered atomic.Int64
	w := newWorker(q, func(_ context.Context, tasks []Task) ([]Outcome, error) {
		delivered.Add(int64(len(tasks)))
		return all(tasks, Done()), nil
	}, WorkerConfig{MaxIdle: 50 * time.Millisecond})
	defer start(t, w)()
	scheduleNow(t, q, "before")
	eventually(t, "delivered before", func() bool { return delivered.Load() == 1 })
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := q.Schedule(t.Context(), In("while", 0)); err == nil {
		t.Error("scheduled on a dead Redis")
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "delivered after", func() bool {
		_ = q.Schedule(t.Context(), In("after", 0)) // connections of the old server may still fail
		return delivered.Load() >= 2
	})
}

// TestRedisOutOfMemory: nothing more can be scheduled, but what is scheduled is delivered, retried, buried
// and acked, and leases still expire.
func TestRedisOutOfMemory(t *testing.T) {
	server := testenv.RedisServer(t)
	q := newQueue(t, connect(t, server.URL()), 1)
	scheduleNow(t, q, "done", "again", "dead", "expires")
	if _, err := q.Claim(t.Context(), 0, 1, time.Microsecond); err != nil {
		t.Fatal(err)
	}
	for setting, value := range map[string]string{"maxmemory-policy": "noeviction", "maxmemory": "1"} {
		if err := q.rdb.ConfigSet(t.Context(), setting, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Schedule(t.Context(), In("refused", time.Hour)); err == nil {
		t.Error("scheduled without memory")
	}
	b, err := q.Claim(t.Context(), 0, 10, time.Hour)
	if err != nil || len(b.Tasks) != 4 {
		t.Fatalf("claimed %v, %v; want all four", b.Tasks, err)
	}
	_, ackErr := q.Ack(t.Context(), b, "done", "expires")
	_, retryErr := q.Retry(t.Context(), b, Requeue{ID: "again", In: time.Hour, Err: "broken"})
	_, buryErr := q.Bury(t.Context(), b, Burial{ID: "dead", Err: "broken"})
	if err := errors.Join(ackErr, retryErr, buryErr); err != nil {
		t.Error(err)
	}
	if got, want := depth(t, q), (Depth{Scheduled: 1, Dead: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestHalfAnHour lets 30 minutes pass in the time that it takes to compute them: tasks are delivered at
// their time, to the microsecond, with next to no commands while nothing is due.
func TestHalfAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		defer server.Close()
		rdb := redis.NewUniversalClient(withLimits(&redis.UniversalOptions{
			Dialer: func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
		}))
		defer rdb.Close()
		q := newQueue(t, rdb, 1)
		began := time.Now()
		late := map[string]time.Duration{}
		w := newWorker(q, func(_ context.Context, tasks []Task) ([]Outcome, error) {
			for _, task := range tasks {
				after, err := time.ParseDuration(task.ID)
				if err != nil {
					return nil, err
				}
				late[task.ID] = time.Since(began) - after
			}
			return all(tasks, Done()), nil
		}, WorkerConfig{Loops: 1})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		for _, after := range []time.Duration{30 * time.Minute, 10 * time.Minute, 10*time.Minute + 7*time.Microsecond} {
			if err := q.Schedule(ctx, In(after.String(), after)); err != nil {
				t.Fatal(err)
			}
		}
		pause(ctx, 31*time.Minute)
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if len(late) != 3 {
			t.Fatalf("delivered %v, want all three", late)
		}
		for id, d := range late {
			if d < 0 || d > time.Millisecond {
				t.Errorf("%s was late by %v", id, d)
			}
		}
	})
}

func TestBackoff(t *testing.T) {
	w := newWorker(&Queue{}, nil, WorkerConfig{BackoffMin: time.Second, BackoffMax: time.Minute})
	for attempts, middle := range map[int]time.Duration{
		0: time.Second, 1: 2 * time.Second, 5: 32 * time.Second, 6: time.Minute, 29: time.Minute, 1000: time.Minute,
	} {
		for range 100 {
			if got := w.backoff(attempts); got < middle/2 || got > middle*3/2 {
				t.Fatalf("backoff(%d) = %v, want %v ± half", attempts, got, middle)
			}
		}
	}
}
