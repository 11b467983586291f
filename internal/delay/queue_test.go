package delay

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/testenv"
)

// at is a score: a time plus d. For a seeded score the time is since, which is Redis's time when the test began. For a
// fresh score, which the operation computed, the time is some instant during the operation.
type at struct {
	d     time.Duration
	fresh bool
}

func seeded(d time.Duration) at { return at{d: d} }
func fresh(d time.Duration) at  { return at{d: d, fresh: true} }

// state is the content of a shard, without its marker.
type state struct {
	due, leased, dead map[string]at
	attempts          map[string]string
	errors            map[string]string
}

const (
	long  = time.Hour // much longer than a test takes
	lease = 2 * long
)

func seed(t *testing.T, q *Queue, since int64, s state) {
	t.Helper()
	shard := q.shards[0]
	for key, set := range map[string]map[string]at{shard.due: s.due, shard.leased: s.leased, shard.dead: s.dead} {
		for id, at := range set {
			score := float64(since + at.d.Microseconds())
			if err := q.rdb.ZAdd(t.Context(), key, redis.Z{Score: score, Member: id}).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for key, hash := range map[string]map[string]string{shard.attempts: s.attempts, shard.errs: s.errors} {
		for id, v := range hash {
			if err := q.rdb.HSet(t.Context(), key, id, v).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// expect compares the content of shard 0 with want. The operation ran between from and to.
func expect(t *testing.T, q *Queue, since, from, to int64, want state) {
	t.Helper()
	shard := q.shards[0]
	for name, set := range map[string]struct {
		key  string
		want map[string]at
	}{
		"due": {shard.due, want.due}, "leased": {shard.leased, want.leased}, "dead": {shard.dead, want.dead},
	} {
		members, err := q.rdb.ZRangeWithScores(t.Context(), set.key, 0, -1).Result()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int64{}
		for _, z := range members {
			got[z.Member.(string)] = int64(z.Score)
		}
		if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(set.want))) {
			t.Errorf("%s holds %v, want %v", name, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(set.want)))
			continue
		}
		for id, at := range set.want {
			low, high := since+at.d.Microseconds(), since+at.d.Microseconds()
			if at.fresh {
				low, high = from+at.d.Microseconds(), to+at.d.Microseconds()
			}
			if got[id] < low || got[id] > high {
				t.Errorf("%s has %s at %v, want %v", name, id,
					time.Duration(got[id]-since)*time.Microsecond, at)
			}
		}
	}
	for name, hash := range map[string]struct {
		key  string
		want map[string]string
	}{"attempts": {shard.attempts, want.attempts}, "errors": {shard.errs, want.errors}} {
		got, err := q.rdb.HGetAll(t.Context(), hash.key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(got, hash.want) {
			t.Errorf("%s holds %v, want %v", name, got, hash.want)
		}
	}
}

// tokenAt returns the batch of a claim whose leases end at a seeded score.
func tokenAt(since int64, d time.Duration) Batch {
	return Batch{token: strconv.FormatInt(since+d.Microseconds(), 10)}
}

// TestQueueStates runs each operation on a queue with a given content, and compares the whole content afterwards.
func TestQueueStates(t *testing.T) {
	type sets = map[string]at
	schedule := func(id string, left time.Duration) func(context.Context, *Queue, Batch) (any, error) {
		return func(ctx context.Context, q *Queue, _ Batch) (any, error) {
			return nil, q.Schedule(ctx, In(id, left))
		}
	}
	claim := func(limit int) func(context.Context, *Queue, Batch) (any, error) {
		return func(ctx context.Context, q *Queue, _ Batch) (any, error) {
			b, err := q.Claim(ctx, 0, limit, lease)
			got := ""
			for _, task := range b.Tasks {
				got += task.ID + strconv.Itoa(task.Attempts) + " "
			}
			if b.Next > 100*365*24*time.Hour {
				return got + "never", err
			}
			return got + b.Next.Round(long).String(), err
		}
	}
	renew := func(ids ...string) func(context.Context, *Queue, Batch) (any, error) {
		return func(ctx context.Context, q *Queue, mine Batch) (any, error) {
			for _, id := range ids {
				mine.Tasks = append(mine.Tasks, Task{ID: id})
			}
			old := mine
			ok, err := q.Renew(ctx, &mine, 2*long)
			if err != nil || ok == (mine.token == old.token) {
				return nil, fmt.Errorf("renewed: %v, the token %s was replaced by %s: %w", ok, old.token, mine.token,
					err)
			}
			return ok, nil
		}
	}
	ack := func(ids ...string) func(context.Context, *Queue, Batch) (any, error) {
		return func(ctx context.Context, q *Queue, mine Batch) (any, error) { return q.Ack(ctx, mine, ids...) }
	}
	retry := func(tasks ...Requeue) func(context.Context, *Queue, Batch) (any, error) {
		return func(ctx context.Context, q *Queue, mine Batch) (any, error) { return q.Retry(ctx, mine, tasks...) }
	}
	bury := func(tasks ...Burial) func(context.Context, *Queue, Batch) (any, error) {
		return func(ctx context.Context, q *Queue, mine Batch) (any, error) { return q.Bury(ctx, mine, tasks...) }
	}
	redrive := func(id string) func(context.Context, *Queue, Batch) (any, error) {
		return func(ctx context.Context, q *Queue, _ Batch) (any, error) { return q.Redrive(ctx, id) }
	}

	mine := seeded(lease) // the end of the lease of the batch that each operation gets
	tests := map[string]struct {
		before state
		do     func(context.Context, *Queue, Batch) (any, error)
		gives  any
		after  state
	}{
		"schedule: new": {
			do:    schedule("a", long),
			after: state{due: sets{"a": fresh(long)}},
		},
		"schedule: overdue tasks are sorted by their due times": {
			before: state{due: sets{"b": seeded(-long)}},
			do:     schedule("a", -2*long),
			after:  state{due: sets{"a": fresh(-2 * long), "b": seeded(-long)}},
		},
		"schedule: an earlier due time replaces a later one": {
			before: state{due: sets{"a": seeded(2 * long)}},
			do:     schedule("a", long),
			after:  state{due: sets{"a": fresh(long)}},
		},
		"schedule: a later due time changes nothing": {
			before: state{due: sets{"a": seeded(long)}},
			do:     schedule("a", 2*long),
			after:  state{due: sets{"a": seeded(long)}},
		},
		"schedule: a leased task gets a second delivery": {
			before: state{leased: sets{"a": mine}},
			do:     schedule("a", 0),
			after:  state{leased: sets{"a": mine}, due: sets{"a": fresh(0)}},
		},
		"schedule: a dead letter stays dead": {
			before: state{dead: sets{"a": seeded(-long)}},
			do:     schedule("a", 0),
			after:  state{dead: sets{"a": seeded(-long)}},
		},

		"claim: empty": {do: claim(10), gives: "never"},
		"claim: nothing due": {
			before: state{due: sets{"a": seeded(long)}},
			do:     claim(10),
			gives:  "1h0m0s",
			after:  state{due: sets{"a": seeded(long)}},
		},
		"claim: the earliest first, up to the limit": {
			before: state{due: sets{"a": seeded(-long), "b": seeded(-3 * long), "c": seeded(-2 * long)}},
			do:     claim(2),
			gives:  "b0 c0 0s",
			after:  state{due: sets{"a": seeded(-long)}, leased: sets{"b": fresh(lease), "c": fresh(lease)}},
		},
		"claim: returns failed attempts": {
			before: state{due: sets{"a": seeded(-long)}, attempts: map[string]string{"a": "3"},
				errors: map[string]string{"a": "why"}},
			do:    claim(1),
			gives: "a3 2h0m0s",
			after: state{leased: sets{"a": fresh(lease)}, attempts: map[string]string{"a": "3"},
				errors: map[string]string{"a": "why"}},
		},
		"claim: a leased task is not claimed; Next is the end of its lease": {
			before: state{leased: sets{"a": seeded(long)}, due: sets{"b": seeded(2 * long)}},
			do:     claim(10),
			gives:  "1h0m0s",
			after:  state{leased: sets{"a": seeded(long)}, due: sets{"b": seeded(2 * long)}},
		},
		"claim: an expired lease is claimed again": {
			before: state{leased: sets{"a": seeded(-long), "b": seeded(long)}},
			do:     claim(10),
			gives:  "a0 1h0m0s",
			after:  state{leased: sets{"a": fresh(lease), "b": seeded(long)}},
		},
		"claim: expired leases beyond the limit wait for the next claim": {
			before: state{leased: sets{"a": seeded(-2 * long), "b": seeded(-long)}},
			do:     claim(1),
			gives:  "a0 0s",
			after:  state{leased: sets{"a": fresh(lease), "b": seeded(-long)}},
		},
		"claim: a second delivery waits for the end of the lease": {
			before: state{leased: sets{"a": seeded(long)}, due: sets{"a": seeded(-long), "b": seeded(-long)}},
			do:     claim(10),
			gives:  "b0 1h0m0s",
			after:  state{leased: sets{"a": seeded(long), "b": fresh(lease)}, due: sets{"a": seeded(long)}},
		},
		"claim: an expired lease and a second delivery make one delivery": {
			before: state{leased: sets{"a": seeded(-long)}, due: sets{"a": seeded(-2 * long)}},
			do:     claim(10),
			gives:  "a0 2h0m0s",
			after:  state{leased: sets{"a": fresh(lease)}},
		},
		"claim: the end of an expired lease replaces a later due time": {
			before: state{leased: sets{"a": seeded(-long)}, due: sets{"a": seeded(3 * long)}},
			do:     claim(10),
			gives:  "a0 2h0m0s",
			after:  state{leased: sets{"a": fresh(lease)}},
		},

		"renew: the leases end later": {
			before: state{leased: sets{"a": mine, "b": mine, "c": mine}, due: sets{"a": seeded(long)}},
			do:     renew("a", "b"),
			gives:  true,
			after: state{leased: sets{"a": fresh(2 * long), "b": fresh(2 * long), "c": mine},
				due: sets{"a": seeded(long)}},
		},
		"renew: another worker's lease is not changed": {
			before: state{leased: sets{"a": seeded(lease + time.Microsecond), "b": mine},
				due: sets{"c": seeded(-long)}},
			do:    renew("a", "b", "c"),
			gives: true,
			after: state{leased: sets{"a": seeded(lease + time.Microsecond), "b": fresh(2 * long)},
				due: sets{"c": seeded(-long)}},
		},
		"renew: too late": {
			before: state{leased: sets{"a": seeded(lease + time.Microsecond)}, due: sets{"b": seeded(-long)}},
			do:     renew("a", "b"),
			gives:  false,
			after:  state{leased: sets{"a": seeded(lease + time.Microsecond)}, due: sets{"b": seeded(-long)}},
		},

		"ack: removes the task": {
			before: state{leased: sets{"a": mine, "b": mine}, attempts: map[string]string{"a": "2"},
				errors: map[string]string{"a": "why"}},
			do:    ack("a", "b"),
			gives: 2,
		},
		"ack: another worker's lease is not changed": {
			before: state{leased: sets{"a": seeded(lease + time.Microsecond), "b": mine},
				attempts: map[string]string{"a": "2"}},
			do:    ack("a", "b"),
			gives: 1,
			after: state{leased: sets{"a": seeded(lease + time.Microsecond)}, attempts: map[string]string{"a": "2"}},
		},
		"ack: too late, the task is due again": {
			before: state{due: sets{"a": seeded(-long)}},
			do:     ack("a"),
			gives:  0,
			after:  state{due: sets{"a": seeded(-long)}},
		},
		"ack: a second delivery stays": {
			before: state{leased: sets{"a": mine}, due: sets{"a": seeded(long)}},
			do:     ack("a"),
			gives:  1,
			after:  state{due: sets{"a": seeded(long)}},
		},

		"retry: without an error no failure is counted": {
			before: state{leased: sets{"a": mine}, attempts: map[string]string{"a": "1"},
				errors: map[string]string{"a": "old"}},
			do:    retry(Requeue{ID: "a", In: long}),
			gives: 1,
			after: state{due: sets{"a": fresh(long)}, attempts: map[string]string{"a": "1"},
				errors: map[string]string{"a": "old"}},
		},
		"retry: with an error a failure is counted": {
			before: state{leased: sets{"a": mine, "b": mine}, attempts: map[string]string{"a": "1"},
				errors: map[string]string{"a": "old"}},
			do:    retry(Requeue{ID: "a", In: long, Err: "new"}, Requeue{ID: "b", In: 2 * long, Err: "first"}),
			gives: 2,
			after: state{
				due:      sets{"a": fresh(long), "b": fresh(2 * long)},
				attempts: map[string]string{"a": "2", "b": "1"}, errors: map[string]string{"a": "new", "b": "first"},
			},
		},
		"retry: an earlier second delivery stays": {
			before: state{leased: sets{"a": mine}, due: sets{"a": seeded(long)}},
			do:     retry(Requeue{ID: "a", In: 2 * long}),
			gives:  1,
			after:  state{due: sets{"a": seeded(long)}},
		},
		"retry: another worker's lease is not changed": {
			before: state{leased: sets{"a": seeded(long)}},
			do:     retry(Requeue{ID: "a", In: 0, Err: "mine"}),
			gives:  0,
			after:  state{leased: sets{"a": seeded(long)}},
		},

		"bury: removes a second delivery": {
			before: state{leased: sets{"a": mine}, due: sets{"a": seeded(long)}, attempts: map[string]string{"a": "9"}},
			do:     bury(Burial{ID: "a", Err: "last"}),
			gives:  1,
			after: state{dead: sets{"a": fresh(0)}, attempts: map[string]string{"a": "10"},
				errors: map[string]string{"a": "last"}},
		},
		"bury: another worker's lease is not changed": {
			before: state{leased: sets{"a": seeded(long)}, due: sets{"a": seeded(long)}},
			do:     bury(Burial{ID: "a", Err: "last"}),
			gives:  0,
			after:  state{leased: sets{"a": seeded(long)}, due: sets{"a": seeded(long)}},
		},

		"redrive: due now, with no attempts": {
			before: state{dead: sets{"a": seeded(-long)}, attempts: map[string]string{"a": "10"},
				errors: map[string]string{"a": "last"}},
			do:    redrive("a"),
			gives: true,
			after: state{due: sets{"a": fresh(0)}},
		},
		"redrive: no such dead letter": {
			before: state{due: sets{"a": seeded(long)}, attempts: map[string]string{"a": "1"}},
			do:     redrive("a"),
			gives:  false,
			after:  state{due: sets{"a": seeded(long)}, attempts: map[string]string{"a": "1"}},
		},
	}
	onEachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, 1)
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				s := q.shards[0]
				rdb.Del(t.Context(), s.due, s.leased, s.dead, s.attempts, s.errs)
				since := redisTime(t, q)
				seed(t, q, since, test.before)
				from := redisTime(t, q)
				gives, err := test.do(t.Context(), q, tokenAt(since, lease))
				if err != nil {
					t.Fatal(err)
				}
				// The test's clock and Redis's clock differ by rounding: allow a millisecond.
				expect(t, q, since, from-1000, redisTime(t, q)+1000, test.after)
				if gives != test.gives {
					t.Errorf("returned %v, want %v", gives, test.gives)
				}
			})
		}
	})
}

func TestDeadLettersLatestFirst(t *testing.T) {
	q := newQueue(t, newRedis(t), 3)
	for i := range 5 {
		id := strconv.Itoa(i)
		if err := q.Schedule(t.Context(), In(id, -time.Second)); err != nil {
			t.Fatal(err)
		}
		b, err := q.Claim(t.Context(), q.shardOf(id), 1, lease)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := q.Bury(t.Context(), b, Burial{ID: id, Err: "reason " + id}); err != nil {
			t.Fatal(err)
		}
	}
	page, err := q.DeadLetters(t.Context(), 3)
	if err != nil || len(page) != 3 {
		t.Fatalf("listed %v, %v; want 3 dead letters", page, err)
	}
	for n, want := range []string{"4", "3", "2"} {
		if l := page[n]; l.ID != want || l.Error != "reason "+want || l.Attempts != 1 || l.Kind != "test.kind" {
			t.Errorf("letter %d is %+v, want id %s", n, l, want)
		}
	}
}

// TestMarkers wipes a shard whose marker is set.
func TestMarkers(t *testing.T) {
	onEachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, 8)
		intact := func(want bool) {
			t.Helper()
			if got, err := Intact(t.Context(), q); err != nil || got[0] != want {
				t.Fatalf("Intact() = %v, %v; want %v", got, err, want)
			}
		}
		intact(false)
		testenv.Must(t, q.MarkIntact(t.Context()))
		intact(true)
		testenv.Must(t, rdb.Del(t.Context(), q.shards[3].marker).Err()) // one node was wiped
		intact(false)
		testenv.Must(t, q.MarkIntact(t.Context()))
		intact(true)
	})
}

func TestNewQueueRejects(t *testing.T) {
	for _, test := range []struct {
		kind   string
		shards int
	}{{"", 1}, {"Upper", 1}, {"a{b}", 1}, {"a b", 1}, {"ok", 0}, {"ok", -1}, {"ok", 1025}} {
		if _, err := NewQueue(nil, test.kind, test.shards); err == nil {
			t.Errorf("NewQueue(%q, %d) returned no error", test.kind, test.shards)
		}
	}
}

func TestConnectErrorHidesThePassword(t *testing.T) {
	for _, url := range []string{
		"", "http://localhost", "redis://:s3cret@host:notaport", "redis://host/notanumber",
		"redis://:s3cret@host?master_name=", "redis://host?master_name=shop&password=s3cret&addr=noport",
		"redis://host?password=s3cret", "redis://:s3cret@host?addr=noport", "redis://host/-1", "unix:///redis.sock",
		"redis://host?pool_size=2", "redis://host?addr=two:1&read_timeout=1s",
	} {
		rdb, err := Connect(url, nil)
		if err == nil {
			rdb.Close()
			t.Errorf("Connect(%q) returned no error", url)
			continue
		}
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the error of Connect(%q) contains the password: %v", url, err)
		}
	}
}

func TestMicrosRoundsUp(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, 999: 1, 1000: 1, 1001: 2, time.Second: 1e6, -1: 0, -1000: -1, -1001: -1,
	} {
		if got := micros(d); got != want {
			t.Errorf("micros(%d ns) = %d, want %d", d, got, want)
		}
	}
}

// TestAt uses times of a clock that is far from the machine's. Only the duration between them counts.
func TestAt(t *testing.T) {
	now := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	if left := At("a", now.Add(time.Hour), now).Left(); left > time.Hour || left < 50*time.Minute {
		t.Errorf("the time left is %v, want an hour", left)
	}
}

// TestSpread counts tasks at the edges of the ranges, some of them in a far shard.
func TestSpread(t *testing.T) {
	onEachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, 3)
		const far = 24 * time.Hour // the test takes less
		for i, left := range []time.Duration{-2 * far, far / 2, far / 2, 3 * far / 2, 7 * far / 2} {
			mustSchedule(t, q, In(strconv.Itoa(i), left))
		}
		got, err := q.Spread(t.Context(), -far/4, far, 3)
		want := Spread{Before: 1, Counts: []int64{2, 1, 0}, Later: 1}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("the tasks are %+v, %v; want %+v", got, err, want)
		}
	})
}
