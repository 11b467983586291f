package delay

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/testenv"
)

// newWorker returns a worker after the changes of its times.
func newWorker(q *Queue, h Handler, cfg WorkerConfig, changes ...func(*Worker)) *Worker {
	w := NewWorker(q, h, cfg, quiet(), nil)
	for _, change := range changes {
		change(w)
	}
	return w
}

func withTimeout(d time.Duration) func(*Worker) { return func(w *Worker) { w.timeout = d } }
func withLease(d time.Duration) func(*Worker)   { return func(w *Worker) { w.lease = d } }
func withMaxIdle(d time.Duration) func(*Worker) { return func(w *Worker) { w.maxIdle = d } }

func scheduleNow(t testing.TB, q *Queue, ids ...string) {
	t.Helper()
	for _, id := range ids {
		testenv.Must(t, q.Schedule(t.Context(), In(id, -time.Second)))
	}
}

func depth(t testing.TB, q *Queue) Depth {
	t.Helper()
	d, err := q.Depth(t.Context())
	testenv.Must(t, err)
	d.OldestDue = 0
	return d
}

// runOnce claims one batch of a shard, calls the handler and writes the outcomes to the queue. It returns the number of
// claimed tasks.
func (w *Worker) runOnce(ctx context.Context, shard int) (n int, err error) {
	batch, err := w.queue.Claim(ctx, shard, w.cfg.Batch, w.lease)
	if err != nil {
		return 0, err
	}
	return len(batch.Tasks), w.handle(ctx, batch)
}

func runOnce(t testing.TB, w *Worker) int {
	t.Helper()
	n, err := w.runOnce(t.Context(), 0)
	testenv.Must(t, err)
	return n
}

// TestPoisonDoesNotDelayOthers handles a batch with one poisoned task, which always causes an error. The other tasks of
// the claim are done, and only the poisoned task fails.
func TestPoisonDoesNotDelayOthers(t *testing.T) {
	poisons := map[string]func() ([]Outcome, error){
		"error":          func() ([]Outcome, error) { return nil, errors.New("cannot") },
		"panic":          func() ([]Outcome, error) { panic("cannot") },
		"wrong outcomes": func() ([]Outcome, error) { return []Outcome{Done(), Done(), Done(), Done()}, nil },
	}
	for name, poison := range poisons {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, q *Queue, _ *miniredis.Miniredis) {
				for i := range 100 {
					scheduleNow(t, q, strconv.Itoa(i))
				}
				calls := 0
				w := newWorker(q, func(_ context.Context, tasks []Task) ([]Outcome, error) {
					calls++
					if slices.ContainsFunc(tasks, func(task Task) bool { return task.ID == "37" }) {
						return poison()
					}
					return sameForAll(tasks, Done()), nil
				}, WorkerConfig{})

				if n := runOnce(t, w); n != 100 {
					t.Fatalf("claimed %d tasks, want 100", n)
				}
				if got, want := depth(t, q), (Depth{Scheduled: 1}); got != want {
					t.Errorf("after the batch: %+v, want only the poisoned task, which is tried again: %+v", got, want)
				}
				if calls > 20 {
					t.Errorf("the handler was called %d times, want at most 20: about 2·log2(100)", calls)
				}

				// The wait doubles with each attempt. After its last attempt the task is a dead letter.
				for attempts := range maxAttempts - 1 {
					wait, about := leftOf(t, q, "37"), time.Second<<attempts
					if wait < about/2 || wait > 3*about/2 {
						t.Errorf("the wait after attempt %d is %v, want about %v", attempts+1, wait, about)
					}
					scheduleNow(t, q, "37")
					runOnce(t, w)
				}
				letters, err := q.DeadLetters(t.Context(), 10)
				if err != nil || len(letters) != 1 ||
					letters[0].ID != "37" || letters[0].Attempts != 10 || letters[0].Error == "" {
					t.Errorf("dead letters %+v, %v; want 37 with 10 attempts and its error", letters, err)
				}
			})
		})
	}
}

// TestOutage handles a batch of ten tasks while the handler reports outages. The attempts count as failed only if the
// server answered, and the handler succeeds with other tasks.
func TestOutage(t *testing.T) {
	answered, away := Outage(errors.New("no privilege"), true), Outage(errors.New("no server"), false)
	is := func(ids ...string) func(Task) bool {
		return func(task Task) bool { return slices.Contains(ids, task.ID) }
	}
	any := func(Task) bool { return true }
	slowly := func(Task) bool { // three calls take longer than the handler may
		<-time.After(3 * time.Second)
		return true
	}
	for name, test := range map[string]struct {
		fails           func(Task) bool
		err             error
		calls           int // of the handler
		failed, retried int
	}{
		"all tasks":              {any, answered, 19, 0, 10},
		"one task":               {is("7"), answered, 7, 1, 0},
		"all but one":            {func(task Task) bool { return task.ID != "7" }, answered, 19, 9, 0},
		"all tasks, slowly":      {slowly, answered, 3, 0, 10},
		"no server":              {any, away, 1, 0, 10},
		"no server for some":     {is("7"), away, 1, 0, 10},
		"a fault, not an outage": {any, errors.New("wrong"), 19, 10, 0},
		"a fault of one task":    {is("7"), errors.New("wrong"), 7, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, q *Queue, _ *miniredis.Miniredis) {
				for i := range 10 {
					scheduleNow(t, q, strconv.Itoa(i))
				}
				calls := 0
				w := newWorker(q, func(_ context.Context, tasks []Task) ([]Outcome, error) {
					calls++
					if slices.ContainsFunc(tasks, test.fails) {
						return nil, fmt.Errorf("handle: %w", test.err)
					}
					return sameForAll(tasks, Done()), nil
				}, WorkerConfig{})
				runOnce(t, w)
				attempts, err := q.rdb.HGetAll(t.Context(), q.shards[0].attempts).Result()
				scheduled := int(depth(t, q).Scheduled)
				if err != nil || calls != test.calls || len(attempts) != test.failed ||
					scheduled != test.failed+test.retried {
					t.Errorf("%d calls, %d attempts counted (%v), %d tasks scheduled; want %d, %d and %d",
						calls, len(attempts), err, scheduled, test.calls, test.failed, test.failed+test.retried)
				}
			})
		})
	}
}

// TestWakeUp schedules tasks that are due now. Without a wake-up the worker would sleep for an hour. The first task may
// be scheduled before the worker has subscribed to wake-ups.
func TestWakeUp(t *testing.T) {
	onEachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, 4)
		var delivered atomic.Int64
		w := newWorker(q, func(_ context.Context, tasks []Task) ([]Outcome, error) {
			delivered.Add(int64(len(tasks)))
			return sameForAll(tasks, Done()), nil
		}, WorkerConfig{}, withMaxIdle(time.Hour))
		defer start(t, w)()
		for i := range 20 {
			before := delivered.Load()
			scheduleNow(t, q, strconv.Itoa(i))
			testenv.Eventually(t, "delivered "+strconv.Itoa(i), func() bool { return delivered.Load() > before })
		}
	})
}

// start runs a worker. The returned function stops it, and fails the test if this takes long.
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
				t.Errorf("Run returned %v, want nil", err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("Run did not return within 30 s")
		}
	}
}

// TestEachDeliveredOnce delivers many tasks of several shards to several workers.
func TestEachDeliveredOnce(t *testing.T) {
	onEachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		tasks := testenv.Rounds(2_000, 10_000)
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
			return sameForAll(batch, Done()), nil
		}
		// The lease is longer than any stall of the machine, because a task is delivered twice if its lease ends.
		for range 3 {
			w := newWorker(q, handle, WorkerConfig{}, withLease(time.Hour), withMaxIdle(100*time.Millisecond))
			defer start(t, w)()
		}
		testenv.Must(t, q.Schedule(t.Context(), msgs...))
		testenv.Eventually(t, "empty queue", func() bool { return depth(t, q) == Depth{} })
		mu.Lock()
		defer mu.Unlock()
		if len(seen) != tasks {
			t.Errorf("%d tasks were delivered, want %d", len(seen), tasks)
		}
		for id, n := range seen {
			if n != 1 {
				t.Errorf("%s was delivered %d times, want once", id, n)
			}
		}
	})
}

// TestDrain stops a worker while its handler works.
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
		"returns tasks that it cannot finish": {
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
				return sameForAll(tasks, Done()), nil
			}, WorkerConfig{Loops: 1, Drain: test.drain}, withTimeout(time.Hour), withLease(time.Hour))
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
				t.Errorf("the queue holds %+v, want %+v", got, test.want)
			}
			if n, err := q.rdb.HLen(t.Context(), q.shards[0].attempts).Result(); err != nil || n != 0 {
				t.Errorf("stopping the worker counted %d failed attempts (%v), want 0", n, err)
			}
		})
	}
}

// TestRedisOutOfMemory uses a Redis without free memory. It rejects new tasks. The tasks that it holds are delivered,
// retried, buried and acknowledged, and their leases are renewed and expire.
func TestRedisOutOfMemory(t *testing.T) {
	server := testenv.RedisServer(t)
	q := newQueue(t, connect(t, server.URL()), 1)
	scheduleNow(t, q, "done", "again", "dead", "expires")
	for setting, value := range map[string]string{"maxmemory-policy": "noeviction", "maxmemory": "1"} {
		testenv.Must(t, q.rdb.ConfigSet(t.Context(), setting, value).Err())
	}
	if err := q.Schedule(t.Context(), In("new", time.Hour)); err == nil {
		t.Error("Schedule succeeded without memory")
	}
	if first, err := q.Claim(t.Context(), 0, 1, time.Microsecond); err != nil || len(first.Tasks) != 1 {
		t.Fatalf("claimed %v, %v; want one task, under a lease that ends at once", first.Tasks, err)
	}
	b, err := q.Claim(t.Context(), 0, 10, time.Hour)
	if err != nil || len(b.Tasks) != 4 {
		t.Fatalf("claimed %v, %v; want all four", b.Tasks, err)
	}
	if ok, err := q.Renew(t.Context(), &b, time.Hour); err != nil || !ok {
		t.Errorf("Renew = %v, %v; want true", ok, err)
	}
	_, ackErr := q.Ack(t.Context(), b, "done", "expires")
	_, retryErr := q.Retry(t.Context(), b, Requeue{ID: "again", In: time.Hour, Err: "broken"})
	_, buryErr := q.Bury(t.Context(), b, Burial{ID: "dead", Err: "broken"})
	if err := errors.Join(ackErr, retryErr, buryErr); err != nil {
		t.Error(err)
	}
	if got, want := depth(t, q), (Depth{Scheduled: 1, Dead: 1}); got != want {
		t.Errorf("the queue holds %+v, want %+v", got, want)
	}
}

// simulate runs a test with a simulated clock, on a stand-in for Redis.
func simulate(t *testing.T, test func(t *testing.T, q *Queue, server *miniredis.Miniredis)) {
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		defer server.Close()
		rdb := redis.NewUniversalClient(withLimits(&redis.UniversalOptions{
			Dialer: func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
		}))
		defer rdb.Close()
		test(t, newQueue(t, rdb, 1), server)
	})
}

// TestHandlerIgnoresItsTimeout has a handler that ignores its context. Its leases are renewed until its timeout, and
// then another worker gets the task. The first worker's outcome then counts as a lost lease.
func TestHandlerIgnoresItsTimeout(t *testing.T) {
	simulate(t, func(t *testing.T, q *Queue, _ *miniredis.Miniredis) {
		const timeout, lease = 8 * time.Second, 2500 * time.Millisecond // the defaults
		began, release := time.Now(), make(chan struct{})
		var calls atomic.Int64
		var again time.Duration
		w := newWorker(q, func(_ context.Context, tasks []Task) ([]Outcome, error) {
			if calls.Add(1) == 1 {
				<-release
			} else {
				again = time.Since(began)
			}
			return sameForAll(tasks, Done()), nil
		}, WorkerConfig{})
		stop := start(t, w)
		scheduleNow(t, q, "a")
		sleep(t.Context(), time.Minute)
		close(release)
		stop()
		if lost := testutil.ToFloat64(w.metrics.lost); lost != 1 || depth(t, q) != (Depth{}) {
			t.Errorf("%v leases counted as lost, and the queue holds %+v; want 1 and no task", lost, depth(t, q))
		}
		if calls.Load() != 2 || again < timeout || again > timeout+2*lease {
			t.Errorf("the task was delivered %d times, the second time after %v; want twice, the second time after "+
				"%v to %v",
				calls.Load(), again, timeout, timeout+2*lease)
		}
	})
}

// claimCommands is the number of commands of a claim that finds nothing due. It counts the commands that the script
// runs.
const claimCommands = 4

// TestIdleShard counts the commands of a worker without due tasks: one claim in maxIdle, however many loops the shard
// has.
func TestIdleShard(t *testing.T) {
	simulate(t, func(t *testing.T, q *Queue, server *miniredis.Miniredis) {
		testenv.Must(t, q.Schedule(t.Context(), In("a", 2*time.Hour)))
		defer start(t, newWorker(q, nil, WorkerConfig{Loops: 5}, withMaxIdle(time.Minute)))()
		sleep(t.Context(), time.Second)
		before := server.CommandCount()
		sleep(t.Context(), 20*time.Minute) // the client closes connections that were idle for half an hour
		if n, want := server.CommandCount()-before, 20*claimCommands; n != want {
			t.Errorf("the worker sent %d commands in 20 minutes, want %d: one claim in a minute", n, want)
		}
	})
}

// TestLoopsTakeTurns delivers tasks that become due while handlers work. As long as a loop is free, each task is
// delivered at its due time.
func TestLoopsTakeTurns(t *testing.T) {
	const loops = 3
	simulate(t, func(t *testing.T, q *Queue, _ *miniredis.Miniredis) {
		began := time.Now()
		var mu sync.Mutex
		delivered := map[string]time.Duration{}
		w := newWorker(q, func(_ context.Context, tasks []Task) ([]Outcome, error) {
			mu.Lock()
			for _, task := range tasks {
				delivered[task.ID] = time.Since(began).Round(time.Second)
			}
			mu.Unlock()
			sleep(t.Context(), 10*time.Second)
			return sameForAll(tasks, Done()), nil
		}, WorkerConfig{Loops: loops}, withTimeout(time.Minute), withMaxIdle(time.Hour))
		for i := range loops + 1 {
			testenv.Must(t, q.Schedule(t.Context(), In(strconv.Itoa(i), time.Duration(i+1)*time.Second)))
		}
		defer start(t, w)()
		sleep(t.Context(), 30*time.Second)
		mu.Lock()
		defer mu.Unlock()
		want := map[string]time.Duration{"0": 1 * time.Second, "1": 2 * time.Second, "2": 3 * time.Second,
			"3": 11 * time.Second}
		if !maps.Equal(delivered, want) {
			t.Errorf("delivered after %v, want %v: the last one when the first loop is free", delivered, want)
		}
	})
}

// TestLeasesOfABusyWorker has a handler work for longer than a lease beside an idle worker. The worker renews the
// lease, so that its task is delivered once. A handler that works for less than a quarter of the lease costs no
// renewal.
func TestLeasesOfABusyWorker(t *testing.T) {
	simulate(t, func(t *testing.T, q *Queue, server *miniredis.Miniredis) {
		var ends []float64 // of the lease, each 100 ms
		var deliveries atomic.Int64
		handle := func(ctx context.Context, tasks []Task) ([]Outcome, error) {
			deliveries.Add(1)
			for range 70 {
				end, err := server.ZScore(q.shards[0].leased, "a")
				if err != nil {
					return nil, err
				}
				ends = append(ends, end)
				sleep(ctx, 100*time.Millisecond)
			}
			return sameForAll(tasks, Done()), ctx.Err()
		}
		busy, idle := newWorker(q, handle, WorkerConfig{}), newWorker(q, handle, WorkerConfig{})
		defer start(t, busy)()
		defer start(t, idle)()
		scheduleNow(t, q, "a")
		sleep(t.Context(), 20*time.Second)
		if n := deliveries.Load(); n != 1 || depth(t, q) != (Depth{}) {
			t.Errorf("the task was delivered %d times, and the queue holds %+v; want one delivery and no task", n,
				depth(t, q))
		}
		if lost := testutil.ToFloat64(busy.metrics.lost) + testutil.ToFloat64(idle.metrics.lost); lost != 0 {
			t.Errorf("%v leases counted as lost, want 0", lost)
		}
		if ends[0] != ends[6] || len(slices.Compact(ends)) != 12 {
			t.Errorf("the lease ended at %.0f; want a renewal each 625 ms", ends)
		}
	})
}

// broken makes commands of a client fail.
type broken struct {
	fails atomic.Pointer[func(redis.Cmder) bool]
}

func (b *broken) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b *broken) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if fails := b.fails.Load(); fails != nil && (*fails)(cmd) {
			cmd.SetErr(net.ErrClosed)
			return net.ErrClosed
		}
		return next(ctx, cmd)
	}
}

func (b *broken) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestLostLeases has commands of a worker fail from 100 ms after a renewal on, while its handler works. The context of
// the handler ends, and another worker gets the task. The attempt does not count as failed.
func TestLostLeases(t *testing.T) {
	for name, test := range map[string]struct {
		fails func(redis.Cmder) bool
		after time.Duration
	}{
		"all commands, as of a killed worker": {func(redis.Cmder) bool { return true }, 2400 * time.Millisecond},
		"renewals":                            {func(cmd redis.Cmder) bool { return cmd.Args()[1] == renewScript.Hash() }, 1775 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, q *Queue, server *miniredis.Miniredis) {
				var network broken
				rdb := redis.NewUniversalClient(withLimits(&redis.UniversalOptions{
					Dialer: func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
				}))
				defer rdb.Close()
				rdb.AddHook(&network)
				scheduleNow(t, q, "a")
				var ended, delivered time.Time
				var attempts int
				loser := newWorker(newQueue(t, rdb, 1), func(ctx context.Context, _ []Task) ([]Outcome, error) {
					<-ctx.Done()
					ended = time.Now()
					return nil, ctx.Err()
				}, WorkerConfig{})
				var once errgroup.Group
				once.Go(func() error {
					_, err := loser.runOnce(t.Context(), 0)
					return err
				})
				sleep(t.Context(), 5100*time.Millisecond)
				network.fails.Store(&test.fails)
				began := time.Now()
				defer start(t, newWorker(q, func(_ context.Context, tasks []Task) ([]Outcome, error) {
					delivered, attempts = time.Now(), tasks[0].Attempts
					return sameForAll(tasks, Done()), nil
				}, WorkerConfig{}))()
				sleep(t.Context(), 10*time.Second)
				_ = once.Wait() // a worker whose commands fail cannot write the outcome
				if after := delivered.Sub(began).Round(time.Millisecond); after != test.after ||
					ended.After(delivered) || attempts != 0 {
					t.Errorf("delivered again after %v with %d failed attempts, %v after the context ended; want %v, "+
						"0, and not before",
						after, attempts, delivered.Sub(ended), test.after)
				}
			})
		})
	}
}

// TestLostWakeUp runs the loops of a worker without a subscription to wake-ups. It delivers a new task within maxIdle,
// and tries a task again when its retry is due.
func TestLostWakeUp(t *testing.T) {
	simulate(t, func(t *testing.T, q *Queue, _ *miniredis.Miniredis) {
		began := time.Now()
		var delivered []time.Duration
		w := newWorker(q, func(_ context.Context, tasks []Task) ([]Outcome, error) {
			if delivered = append(delivered, time.Since(began).Round(time.Second)); len(delivered) == 1 {
				return sameForAll(tasks, RetryIn(3*time.Second)), nil
			}
			return sameForAll(tasks, Done()), nil
		}, WorkerConfig{}, withLease(time.Hour), withMaxIdle(time.Minute))
		ctx, cancel := context.WithCancel(t.Context())
		var loops errgroup.Group
		for range 2 {
			loops.Go(func() error { return w.loop(ctx, 0) })
		}
		sleep(ctx, 10*time.Second)
		scheduleNow(t, q, "a")
		sleep(ctx, 10*time.Minute)
		cancel()
		testenv.Must(t, loops.Wait())
		if want := []time.Duration{time.Minute, time.Minute + 3*time.Second}; !slices.Equal(delivered, want) {
			t.Errorf("delivered after %v, want %v: at the next claim, and at the retry", delivered, want)
		}
	})
}

// TestRedisClockJumpsAhead makes a task overdue while a worker sleeps until the task's former due time. The next task
// that is scheduled wakes the worker, though it is due later than the overdue one.
func TestRedisClockJumpsAhead(t *testing.T) {
	simulate(t, func(t *testing.T, q *Queue, server *miniredis.Miniredis) {
		began := time.Now()
		delivered := map[string]time.Duration{}
		w := newWorker(q, func(_ context.Context, tasks []Task) ([]Outcome, error) {
			for _, task := range tasks {
				delivered[task.ID] = time.Since(began).Round(time.Second)
			}
			return sameForAll(tasks, Done()), nil
		}, WorkerConfig{}, withMaxIdle(time.Hour))
		defer start(t, w)()
		testenv.Must(t, q.Schedule(t.Context(), In("before the jump", 10*time.Minute)))
		sleep(t.Context(), time.Minute)
		server.SetTime(time.Now().Add(20 * time.Minute))
		testenv.Must(t, q.Schedule(t.Context(), In("after the jump", 0)))
		sleep(t.Context(), time.Minute)
		want := map[string]time.Duration{"before the jump": time.Minute, "after the jump": time.Minute}
		if !maps.Equal(delivered, want) {
			t.Errorf("delivered after %v, want %v: the worker is woken", delivered, want)
		}
	})
}

// TestFailingClaims counts the commands of a worker whose claims fail: one in about a second, however many loops the
// shard has. A wake-up makes the worker try again at once.
func TestFailingClaims(t *testing.T) {
	simulate(t, func(t *testing.T, q *Queue, server *miniredis.Miniredis) {
		testenv.Must(t, server.Set(q.shards[0].due, "not a sorted set"))
		delivered := make(chan struct{}, 1)
		w := newWorker(q, func(_ context.Context, tasks []Task) ([]Outcome, error) {
			delivered <- struct{}{}
			return sameForAll(tasks, Done()), nil
		}, WorkerConfig{Loops: 5})
		defer start(t, w)()
		sleep(t.Context(), time.Second)
		before := server.CommandCount()
		sleep(t.Context(), time.Minute)
		if n := server.CommandCount() - before; n < 40*claimCommands || n > 120*claimCommands {
			t.Errorf("the worker sent %d commands in a minute, want about %d: a claim in a second", n, 60*claimCommands)
		}

		synctest.Wait()
		server.Del(q.shards[0].due)
		scheduleNow(t, q, "a")
		woken := time.Now()
		<-delivered
		if d := time.Since(woken); d > time.Millisecond {
			t.Errorf("the task was delivered %v after its wake-up, want at once", d)
		}
	})
}
