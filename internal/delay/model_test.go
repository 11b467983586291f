package delay

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"
)

// TestQueueAgainstModel runs random sequences of operations and compares the whole queue with a model in Go after each
// operation. To simulate that time passes it moves every score, by hours: so the duration of the test itself does not
// decide which tasks are due.
func TestQueueAgainstModel(t *testing.T) {
	onEachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, 1)
		rapid.Check(t, func(r *rapid.T) {
			s := q.shards[0]
			if err := rdb.Del(t.Context(), s.due, s.leased, s.dead, s.attempts, s.errs).Err(); err != nil {
				r.Fatal(err)
			}
			m := &machine{ctx: t.Context(), q: q, model: newModel()}
			r.Repeat(rapid.StateMachineActions(m))
		})
	})
}

// model behaves as the queue should, without Redis. Its clock counts hours.
type model struct {
	clock int
	steps int // number of scores so far: of two scores in the same hour the one written later is higher
	due   map[string]score
	lease map[string]*claimed
	dead  map[string]bool
	fails map[string]int
	errs  map[string]string
}

type score struct{ hour, step int }

func (a score) compare(b score) int {
	return cmp.Or(cmp.Compare(a.hour, b.hour), cmp.Compare(a.step, b.step))
}

// claimed is a batch with one of its tokens. Its worker has the leases, or has lost them and does not know it.
type claimed struct {
	batch Batch
	ends  score
}

func newModel() *model {
	return &model{due: map[string]score{}, lease: map[string]*claimed{}, dead: map[string]bool{},
		fails: map[string]int{}, errs: map[string]string{}}
}

func (m *model) in(hours int) score {
	m.steps++
	return score{m.clock + hours, m.steps}
}

func (m *model) past(s score) bool { return s.hour <= m.clock }

func (m *model) schedule(id string, at score) {
	if old, ok := m.due[id]; !ok || at.compare(old) < 0 {
		m.due[id] = at
	}
}

// earliest sorts ids as a sorted set does: by score, then by id.
func earliest(scores map[string]score) []string {
	return slices.SortedFunc(maps.Keys(scores), func(a, b string) int {
		return cmp.Or(scores[a].compare(scores[b]), cmp.Compare(a, b))
	})
}

// claim changes the model as a claim does, and returns the ids that the claim must deliver.
func (m *model) claim(limit int, c *claimed) []string {
	ends := map[string]score{}
	for id, l := range m.lease {
		if m.past(l.ends) {
			ends[id] = l.ends
		}
	}
	for _, id := range first(earliest(ends), limit) {
		m.schedule(id, ends[id])
		delete(m.lease, id)
	}
	due := maps.Clone(m.due)
	maps.DeleteFunc(due, func(_ string, at score) bool { return !m.past(at) })
	var taken []string
	for _, id := range first(earliest(due), limit) {
		if l, live := m.lease[id]; live {
			m.due[id] = l.ends
			continue
		}
		delete(m.due, id)
		m.lease[id] = c
		taken = append(taken, id)
	}
	return taken
}

// next returns the hours until a task is due or a lease ends, or never.
func (m *model) next() int {
	soonest := never
	for _, at := range m.due {
		soonest = min(soonest, at.hour-m.clock)
	}
	for _, l := range m.lease {
		soonest = min(soonest, l.ends.hour-m.clock)
	}
	return max(soonest, 0)
}

// never is more hours than any time in the test, and fewer than the queue returns if nothing is scheduled.
const never = 1000

func first(ids []string, n int) []string { return ids[:min(n, len(ids))] }

// machine runs each operation on the queue and on the model.
type machine struct {
	ctx    context.Context
	q      *Queue
	model  *model
	claims []*claimed // all claims of the test, also those whose leases have ended
}

var modelIDs = []string{"a", "b", "c", "d"}

func (m *machine) Schedule(r *rapid.T) {
	id := rapid.SampledFrom(modelIDs).Draw(r, "id")
	hours := rapid.IntRange(-2, 3).Draw(r, "hours")
	m.must(r, m.q.Schedule(m.ctx, In(id, time.Duration(hours)*time.Hour)))
	if !m.model.dead[id] {
		m.model.schedule(id, m.model.in(hours))
	}
}

func (m *machine) Claim(r *rapid.T) {
	limit := rapid.IntRange(1, len(modelIDs)).Draw(r, "limit")
	hours := rapid.IntRange(1, 3).Draw(r, "lease")
	batch, err := m.q.Claim(m.ctx, 0, limit, time.Duration(hours)*time.Hour)
	m.must(r, err)

	c := &claimed{batch: batch, ends: m.model.in(hours)}
	want := m.model.claim(limit, c)
	var got []string
	for _, task := range batch.Tasks {
		got = append(got, task.ID)
		if task.Attempts != m.model.fails[task.ID] {
			r.Fatalf("%s was delivered with %d attempts, want %d", task.ID, task.Attempts, m.model.fails[task.ID])
		}
	}
	if !slices.Equal(got, want) {
		r.Fatalf("claimed %v, want %v", got, want)
	}
	if next := min(int(batch.Next.Round(time.Hour).Hours()), never); next != m.model.next() {
		r.Fatalf("the next task is due in %d hours, want %d", next, m.model.next())
	}
	if len(got) > 0 {
		m.claims = append(m.claims, c)
	}
}

// drawClaimed draws one of all claims and one of its tasks, and reports whether the claim still has the task's lease.
func (m *machine) drawClaimed(r *rapid.T) (c *claimed, id string, leased bool) {
	if len(m.claims) == 0 {
		r.Skip("nothing was claimed yet")
	}
	c = rapid.SampledFrom(m.claims).Draw(r, "claim")
	id = rapid.SampledFrom(c.batch.Tasks).Draw(r, "task").ID
	return c, id, m.model.lease[id] == c
}

// Renew renews the leases of a claim. The old token then counts as another claim, which has lost its leases.
func (m *machine) Renew(r *rapid.T) {
	c, _, _ := m.drawClaimed(r)
	hours := rapid.IntRange(1, 3).Draw(r, "hours")
	renewed := &claimed{batch: c.batch, ends: m.model.in(hours)}
	ok, err := m.q.Renew(m.ctx, &renewed.batch, time.Duration(hours)*time.Hour)
	m.must(r, err)
	leased := false
	for id, l := range m.model.lease {
		if l == c {
			m.model.lease[id], leased = renewed, true
		}
	}
	if ok != leased {
		r.Fatalf("Renew = %v, want %v", ok, leased)
	}
	if ok {
		m.claims = append(m.claims, renewed)
	}
}

func (m *machine) Ack(r *rapid.T) {
	c, id, leased := m.drawClaimed(r)
	n, err := m.q.Ack(m.ctx, c.batch, id)
	m.must(r, err)
	m.checkEnded(r, n, leased)
	if leased {
		delete(m.model.lease, id)
		delete(m.model.fails, id)
		delete(m.model.errs, id)
	}
}

func (m *machine) Retry(r *rapid.T) {
	c, id, leased := m.drawClaimed(r)
	hours := rapid.IntRange(0, 3).Draw(r, "hours")
	reason := rapid.SampledFrom([]string{"", "broken"}).Draw(r, "error")
	n, err := m.q.Retry(m.ctx, c.batch, Requeue{ID: id, In: time.Duration(hours) * time.Hour, Err: reason})
	m.must(r, err)
	m.checkEnded(r, n, leased)
	if leased {
		delete(m.model.lease, id)
		m.model.schedule(id, m.model.in(hours))
		if reason != "" {
			m.model.fails[id]++
			m.model.errs[id] = reason
		}
	}
}

func (m *machine) Bury(r *rapid.T) {
	c, id, leased := m.drawClaimed(r)
	n, err := m.q.Bury(m.ctx, c.batch, Burial{ID: id, Err: "buried"})
	m.must(r, err)
	m.checkEnded(r, n, leased)
	if leased {
		delete(m.model.lease, id)
		delete(m.model.due, id)
		m.model.dead[id] = true
		m.model.fails[id]++
		m.model.errs[id] = "buried"
	}
}

func (m *machine) Redrive(r *rapid.T) {
	id := rapid.SampledFrom(modelIDs).Draw(r, "id")
	ok, err := m.q.Redrive(m.ctx, id)
	m.must(r, err)
	if ok != m.model.dead[id] {
		r.Fatalf("Redrive(%s) = %v, want %v", id, ok, m.model.dead[id])
	}
	if ok {
		delete(m.model.dead, id)
		delete(m.model.fails, id)
		delete(m.model.errs, id)
		m.model.schedule(id, m.model.in(0))
	}
}

// TimePasses moves every score back. It moves the tokens too, because they are the scores of leases.
func (m *machine) TimePasses(r *rapid.T) {
	hours := rapid.IntRange(1, 2).Draw(r, "hours")
	m.model.clock += hours
	back := -int64(hours) * time.Hour.Microseconds()
	for _, key := range []string{m.q.shards[0].due, m.q.shards[0].leased} {
		members, err := m.q.rdb.ZRange(m.ctx, key, 0, -1).Result()
		m.must(r, err)
		for _, id := range members {
			m.must(r, m.q.rdb.ZIncrBy(m.ctx, key, float64(back), id).Err())
		}
	}
	for _, c := range m.claims {
		end, err := strconv.ParseInt(c.batch.token, 10, 64)
		m.must(r, err)
		c.batch.token = strconv.FormatInt(end+back, 10)
	}
}

// Check compares all sets with the model. A task that is missing in Redis is lost, and a task that is there twice is
// delivered twice.
func (m *machine) Check(r *rapid.T) {
	s := m.q.shards[0]
	due, err := m.q.rdb.ZRange(m.ctx, s.due, 0, -1).Result()
	m.must(r, err)
	if want := earliest(m.model.due); !slices.Equal(due, want) {
		r.Fatalf("due holds %v, want %v", due, want)
	}
	leased, err := m.q.rdb.ZRangeWithScores(m.ctx, s.leased, 0, -1).Result()
	m.must(r, err)
	if len(leased) != len(m.model.lease) {
		r.Fatalf("leased holds %v, want %v", leased, m.model.lease)
	}
	for _, z := range leased {
		id := z.Member.(string)
		if l := m.model.lease[id]; l == nil || l.batch.token != strconv.FormatInt(int64(z.Score), 10) {
			r.Fatalf("%s is leased under %.0f, want %+v", id, z.Score, l)
		}
	}
	dead, err := m.q.rdb.ZRange(m.ctx, s.dead, 0, -1).Result()
	m.must(r, err)
	if want := slices.Sorted(maps.Keys(m.model.dead)); !slices.Equal(slices.Sorted(slices.Values(dead)), want) {
		r.Fatalf("dead holds %v, want %v", dead, want)
	}
	attempts, err := m.q.rdb.HGetAll(m.ctx, s.attempts).Result()
	m.must(r, err)
	if got, want := fmt.Sprint(attempts), fmt.Sprint(m.model.fails); got != want {
		r.Fatalf("the failed attempts are %s, want %s", got, want)
	}
	errs, err := m.q.rdb.HGetAll(m.ctx, s.errs).Result()
	m.must(r, err)
	if !maps.Equal(errs, m.model.errs) {
		r.Fatalf("the errors are %v, want %v", errs, m.model.errs)
	}
}

func (m *machine) checkEnded(r *rapid.T, n int, leased bool) {
	if (n == 1) != leased {
		r.Fatalf("%d leases were ended, want one exactly if the claim has the lease: %v", n, leased)
	}
}

func (m *machine) must(r *rapid.T, err error) {
	if err != nil {
		r.Fatal(err)
	}
}
