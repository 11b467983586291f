package delay

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/testenv"
)

func TestDeadLettersLatestFirst(t *testing.T) {
	q := newQueue(t, newRedis(t), 3)
	for i := range 5 {
		id := strconv.Itoa(i)
		testenv.Must(t, q.Schedule(t.Context(), In(id, -time.Second)))
		b, err := q.Claim(t.Context(), q.shardOf(id), 1, time.Hour)
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
