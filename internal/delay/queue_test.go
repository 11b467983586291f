package delay

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/testenv"
)

const (
	long  = time.Hour // much longer than a test takes
	lease = 2 * long
)

// operation is an operation on a queue, and what it gives. mine is a batch whose leases end at 2.
type operation func(ctx context.Context, q *Queue, mine Batch) (any, error)

// parts are the sets and hashes of a shard, in the order of a state.
func parts(s shard) (names []string, keys map[string]string) {
	return []string{"due", "leased", "dead", "attempts", "errors"}, map[string]string{
		"due": s.due, "leased": s.leased, "dead": s.dead, "attempts": s.attempts, "errors": s.errs,
	}
}

// writeState makes a state the content of shard 0. The test began at since, in microseconds.
func writeState(t *testing.T, q *Queue, since int64, state string) {
	t.Helper()
	_, keys := parts(q.shards[0])
	for part := range strings.SplitSeq(state, ", ") {
		name, members, _ := strings.Cut(part, " ")
		for _, member := range strings.Fields(members) {
			id, value, _ := strings.Cut(member, "=")
			if name == "attempts" || name == "errors" {
				do(t, q, "HSET", keys[name], id, value)
				continue
			}
			text, later := strings.CutSuffix(value, "+")
			hours, err := strconv.Atoi(text)
			testenv.Must(t, err)
			score := since + int64(hours)*long.Microseconds()
			if later {
				score++
			}
			do(t, q, "ZADD", keys[name], score, id)
		}
	}
}

// readState returns the state of shard 0 after an operation between from and to.
func readState(t *testing.T, q *Queue, since, from, to int64) string {
	t.Helper()
	names, keys := parts(q.shards[0])
	var state []string
	for _, name := range names {
		var members []string
		if name == "attempts" || name == "errors" {
			hash, err := q.rdb.HGetAll(t.Context(), keys[name]).Result()
			testenv.Must(t, err)
			for id, value := range hash {
				members = append(members, id+"="+value)
			}
		} else {
			set, err := q.rdb.ZRangeWithScores(t.Context(), keys[name], 0, -1).Result()
			testenv.Must(t, err)
			for _, z := range set {
				members = append(members, z.Member.(string)+hoursOf(int64(z.Score), since, from, to))
			}
		}
		if slices.Sort(members); len(members) > 0 {
			state = append(state, name+" "+strings.Join(members, " "))
		}
	}
	return strings.Join(state, ", ")
}

// hoursOf returns a score in the form of a state: counted from the start of the test, or from the operation.
func hoursOf(score, since, from, to int64) string {
	hours := int64(math.Round(float64(score-since) / float64(long.Microseconds())))
	switch at := hours * long.Microseconds(); {
	case score == since+at:
		return fmt.Sprintf("=%d", hours)
	case score == since+at+1:
		return fmt.Sprintf("=%d+", hours)
	case from+at <= score && score <= to+at:
		return fmt.Sprintf("~%d", hours)
	}
	return fmt.Sprintf("=%v", time.Duration(score-since)*time.Microsecond)
}

// TestQueueStates runs each operation of its table on a queue with a given content, and compares the whole content
// afterwards. A state of the queue is the content of its sets and hashes: "due a=-1 b=2" says that task a was due an
// hour before the start of the test, and b is due two hours after it; "=2+" is a microsecond later. A score with "~",
// as in "leased c~2", counts from the operation. A lease that ends at 2 is that of the batch that each operation gets;
// one that ends at another time is that of another worker.
func TestQueueStates(t *testing.T) {
	schedule := func(id string, hours int) operation {
		return func(ctx context.Context, q *Queue, _ Batch) (any, error) {
			return nil, q.Schedule(ctx, In(id, time.Duration(hours)*long))
		}
	}
	claim := func(limit int) operation {
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
	renew := func(ids ...string) operation {
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
	ack := func(ids ...string) operation {
		return func(ctx context.Context, q *Queue, mine Batch) (any, error) { return q.Ack(ctx, mine, ids...) }
	}
	retry := func(tasks ...Requeue) operation {
		return func(ctx context.Context, q *Queue, mine Batch) (any, error) { return q.Retry(ctx, mine, tasks...) }
	}
	bury := func(id, reason string) operation {
		return func(ctx context.Context, q *Queue, mine Batch) (any, error) {
			return q.Bury(ctx, mine, Burial{ID: id, Err: reason})
		}
	}
	redrive := func(id string) operation {
		return func(ctx context.Context, q *Queue, _ Batch) (any, error) { return q.Redrive(ctx, id) }
	}

	tests := map[string]struct {
		before string
		do     operation
		gives  any
		after  string
	}{
		"schedule: new": {"", schedule("a", 1), nil, "due a~1"},
		"schedule: overdue tasks are sorted by their due times": {
			"due b=-1", schedule("a", -2), nil, "due a~-2 b=-1"},
		"schedule: an earlier due time replaces a later one": {"due a=2", schedule("a", 1), nil, "due a~1"},
		"schedule: a later due time changes nothing":         {"due a=1", schedule("a", 2), nil, "due a=1"},
		"schedule: a leased task gets a second delivery": {
			"leased a=2", schedule("a", 0), nil, "due a~0, leased a=2"},
		"schedule: a dead letter stays dead": {"dead a=-1", schedule("a", 0), nil, "dead a=-1"},

		"claim: empty":       {"", claim(10), "never", ""},
		"claim: nothing due": {"due a=1", claim(10), "1h0m0s", "due a=1"},
		"claim: the earliest first, up to the limit": {
			"due a=-1 b=-3 c=-2", claim(2), "b0 c0 0s", "due a=-1, leased b~2 c~2"},
		"claim: returns failed attempts": {
			"due a=-1, attempts a=3, errors a=why", claim(1), "a3 2h0m0s", "leased a~2, attempts a=3, errors a=why"},
		"claim: a leased task is not claimed; Next is the end of its lease": {
			"due b=2, leased a=1", claim(10), "1h0m0s", "due b=2, leased a=1"},
		"claim: an expired lease is claimed again": {"leased a=-1 b=1", claim(10), "a0 1h0m0s", "leased a~2 b=1"},
		"claim: expired leases beyond the limit wait for the next claim": {
			"leased a=-2 b=-1", claim(1), "a0 0s", "leased a~2 b=-1"},
		"claim: a second delivery waits for the end of the lease": {
			"due a=-1 b=-1, leased a=1", claim(10), "b0 1h0m0s", "due a=1, leased a=1 b~2"},
		"claim: an expired lease and a second delivery make one delivery": {
			"due a=-2, leased a=-1", claim(10), "a0 2h0m0s", "leased a~2"},
		"claim: the end of an expired lease replaces a later due time": {
			"due a=3, leased a=-1", claim(10), "a0 2h0m0s", "leased a~2"},

		"renew: the leases end later": {
			"due a=1, leased a=2 b=2 c=2", renew("a", "b"), true, "due a=1, leased a~2 b~2 c=2"},
		"renew: another worker's lease is not changed": {
			"due c=-1, leased a=2+ b=2", renew("a", "b", "c"), true, "due c=-1, leased a=2+ b~2"},
		"renew: too late": {"due b=-1, leased a=2+", renew("a", "b"), false, "due b=-1, leased a=2+"},

		"ack: removes the task": {"leased a=2 b=2, attempts a=2, errors a=why", ack("a", "b"), 2, ""},
		"ack: another worker's lease is not changed": {
			"leased a=2+ b=2, attempts a=2", ack("a", "b"), 1, "leased a=2+, attempts a=2"},
		"ack: too late, the task is due again": {"due a=-1", ack("a"), 0, "due a=-1"},
		"ack: a second delivery stays":         {"due a=1, leased a=2", ack("a"), 1, "due a=1"},

		"retry: without an error no failure is counted": {
			"leased a=2, attempts a=1, errors a=old", retry(Requeue{ID: "a", In: long}), 1,
			"due a~1, attempts a=1, errors a=old"},
		"retry: with an error a failure is counted": {
			"leased a=2 b=2, attempts a=1, errors a=old",
			retry(Requeue{ID: "a", In: long, Err: "new"}, Requeue{ID: "b", In: 2 * long, Err: "first"}), 2,
			"due a~1 b~2, attempts a=2 b=1, errors a=new b=first"},
		"retry: an earlier second delivery stays": {
			"due a=1, leased a=2", retry(Requeue{ID: "a", In: 2 * long}), 1, "due a=1"},
		"retry: another worker's lease is not changed": {
			"leased a=1", retry(Requeue{ID: "a", Err: "mine"}), 0, "leased a=1"},

		"bury: removes a second delivery": {
			"due a=1, leased a=2, attempts a=9", bury("a", "last"), 1, "dead a~0, attempts a=10, errors a=last"},
		"bury: another worker's lease is not changed": {
			"due a=1, leased a=1", bury("a", "last"), 0, "due a=1, leased a=1"},

		"redrive: due now, with no attempts": {
			"dead a=-1, attempts a=10, errors a=last", redrive("a"), true, "due a~0"},
		"redrive: no such dead letter": {"due a=1, attempts a=1", redrive("a"), false, "due a=1, attempts a=1"},
	}
	onEachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, 1)
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				emptyQueue(t, q)
				since := redisTime(t, q)
				writeState(t, q, since, test.before)
				from := redisTime(t, q)
				mine := Batch{token: strconv.FormatInt(since+lease.Microseconds(), 10)}
				gives, err := test.do(t.Context(), q, mine)
				testenv.Must(t, err)
				// The test's clock and Redis's clock differ by rounding: allow a millisecond.
				after := readState(t, q, since, from-1000, redisTime(t, q)+1000)
				if gives != test.gives || after != test.after {
					t.Errorf("it gives %v, and the queue holds %q; want %v and %q", gives, after, test.gives,
						test.after)
				}
			})
		}
	})
}

func TestDeadLettersLatestFirst(t *testing.T) {
	q := newQueue(t, newRedis(t), 3)
	for i := range 5 {
		id := strconv.Itoa(i)
		testenv.Must(t, q.Schedule(t.Context(), In(id, -time.Second)))
		b, err := q.Claim(t.Context(), q.shardOf(id), 1, lease)
		testenv.Must(t, err)
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
