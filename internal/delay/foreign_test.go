package delay

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// These tests write to the keys of a queue as other clients could.

// TestForeignAttempts writes values to the hash of attempts that no script writes. A value that is not a plausible
// number of attempts counts as 0. The next failure adds 1.
func TestForeignAttempts(t *testing.T) {
	for value, want := range map[string]int{
		"x": 0, "": 0, "-1": 0, "-inf": 0, "inf": 0, "nan": 0, "1e300": 0, "99999999999999999999": 0, "\xff\x00": 0,
		"7": 7, "2.9": 2,
	} {
		t.Run(fmt.Sprintf("%q", value), func(t *testing.T) {
			q := newQueue(t, newRedis(t), 1)
			scheduleNow(t, q, "a", "b")
			do(t, q, "HSET", q.shards[0].attempts, "a", value)
			attempts := func(want int) {
				t.Helper()
				locations, err := q.Locate(t.Context(), []string{"a", "b"})
				if err != nil || locations[0].Attempts != want {
					t.Errorf("located %+v, %v; want %d attempts of a", locations, err, want)
				}
			}
			attempts(want)
			got := map[string]int{}
			w := newWorker(q, func(_ context.Context, tasks []Task) ([]Outcome, error) {
				for _, task := range tasks {
					got[task.ID] = task.Attempts
				}
				return sameForAll(tasks, Fail(nil)), nil
			}, WorkerConfig{})
			if n := runOnce(t, w); n != 2 || got["a"] != want || got["b"] != 0 {
				t.Errorf("delivered %d tasks with the attempts %v, want 2 tasks with %d for a and 0 for b", n, got,
					want)
			}
			attempts(want + 1)
		})
	}
}

// TestForeignDeadLetters lists dead letters with unusual values among normal ones. All are listed, and JSON can hold
// them.
func TestForeignDeadLetters(t *testing.T) {
	q := newQueue(t, newRedis(t), 3)
	want := []string{"good"}
	scheduleNow(t, q, "good")
	b, err := q.Claim(t.Context(), q.shardOf("good"), 1, lease)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Bury(t.Context(), b, Burial{ID: "good", Err: "why"}); err != nil {
		t.Fatal(err)
	}
	bury := func(id, score string) {
		want = append(want, id)
		do(t, q, "ZADD", q.shards[q.shardOf(id)].dead, score, id)
	}
	for _, score := range []string{"1e18", "-1e18", "+inf", "-inf", "1e300", "0", "9.3e18", "253402300799999999"} {
		bury("score "+score, score)
	}
	for _, attempts := range []string{"abc", "", "-1", "1e300", "99999999999999999999"} {
		id := "attempts " + attempts
		bury(id, "1")
		do(t, q, "HSET", q.shards[q.shardOf(id)].attempts, id, attempts)
	}
	bury("\xff\x00", "1")

	letters, err := q.DeadLetters(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, letter := range letters {
		got = append(got, letter.ID)
		if _, err := json.Marshal(letter); err != nil {
			t.Errorf("JSON cannot hold %+v: %v", letter, err)
		}
		if strings.HasPrefix(letter.ID, "attempts") && letter.ID != "attempts 99999999999999999999" &&
			letter.Attempts != 0 {
			t.Errorf("%s has %d attempts, want 0", letter.ID, letter.Attempts)
		}
		if letter.ID == "good" && (letter.Attempts != 1 || letter.Error != "why" ||
			time.Since(letter.BuriedAt).Abs() > time.Hour) {
			t.Errorf("the normal dead letter is %+v, want one attempt, its error and a recent time", letter)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
}

// TestForeignScores writes scores that no clock reaches, or that are long past, to the due set and to the leased set.
func TestForeignScores(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	for score, never := range map[string]bool{"+inf": true, "1e300": true, "1e19": true, "-inf": false,
		"-1e300": false, "0": false} {
		t.Run(score, func(t *testing.T) {
			q := newQueue(t, newRedis(t), 1)
			do(t, q, "ZADD", q.shards[0].due, score, "due")
			do(t, q, "ZADD", q.shards[0].leased, score, "leased")
			locations, err := q.Locate(t.Context(), []string{"due", "leased"})
			if err != nil || locations[0].State != Scheduled || locations[1].State != Leased {
				t.Fatalf("located %+v, %v; want one task scheduled and one leased", locations, err)
			}
			for _, p := range locations {
				if never && p.Left < century || !never && p.Left > -century/2 {
					t.Errorf("located %+v for the score %s; want it far in the future: %v, or else far in the past", p,
						score, never)
				}
			}
			if d, err := q.Depth(t.Context()); err != nil || d.Due == 1 == never || !never && d.OldestDue < century/2 {
				t.Errorf("depth %+v, %v; want a due task: %v", d, err, !never)
			}
			b, err := q.Claim(t.Context(), 0, 10, lease)
			if err != nil || (len(b.Tasks) == 0) != never || b.Next < 0 || never && b.Next < century {
				t.Errorf("claimed %+v, %v; want a task: %v", b, err, !never)
			}
			// A task that is scheduled again is delivered at its new due time.
			mustSchedule(t, q, In("due", -time.Second))
			if b, err := q.Claim(t.Context(), 0, 10, lease); never && (err != nil || len(b.Tasks) != 1) {
				t.Errorf("claimed %+v, %v after it was scheduled again, want the task", b, err)
			}
		})
	}
}

// TestTaskInSeveralSets writes a task to more than one set. A task that is both dead and scheduled counts as dead,
// because only a redrive may deliver a dead letter.
func TestTaskInSeveralSets(t *testing.T) {
	for name, test := range map[string]struct {
		in   func(s shard) []string
		want TaskState
	}{
		"scheduled and leased":       {func(s shard) []string { return []string{s.due, s.leased} }, Leased},
		"scheduled and dead":         {func(s shard) []string { return []string{s.due, s.dead} }, Dead},
		"leased and dead":            {func(s shard) []string { return []string{s.leased, s.dead} }, Leased},
		"scheduled, leased and dead": {func(s shard) []string { return []string{s.due, s.leased, s.dead} }, Leased},
	} {
		t.Run(name, func(t *testing.T) {
			q := newQueue(t, newRedis(t), 1)
			for _, key := range test.in(q.shards[0]) {
				do(t, q, "ZADD", key, redisTime(t, q)+long.Microseconds(), "a")
			}
			if locations, err := q.Locate(t.Context(), []string{"a"}); err != nil || locations[0].State != test.want {
				t.Errorf("located %+v, %v; want state %d", locations, err, test.want)
			}
		})
	}
}
