package order_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
)

func TestCancelDueAnswersForEveryTask(t *testing.T) {
	s := newShop(t)
	customer, a, b := s.customer(t), s.product(t, 10), s.product(t, 10)
	due, alsoDue := s.place(t, customer, line(b, 1), line(a, 2)).ID, s.place(t, customer, line(a, 3)).ID
	paid, held, early := s.place(t, customer, line(b, 1)).ID, s.place(t, customer, line(b, 1)).ID, s.place(t, customer, line(b, 1)).ID
	if _, err := s.Pay(t.Context(), customer, paid); err != nil {
		t.Fatal(err)
	}
	for _, id := range []uuid.UUID{due, alsoDue, held} {
		s.expire(t, id)
	}
	s.hold(t, `SELECT FROM orders WHERE id = $1 FOR UPDATE`, held)

	tasks := []delay.Task{
		{ID: due.String()}, {ID: "no uuid"}, {ID: paid.String()}, {ID: held.String()}, {ID: early.String()},
		{ID: uuid.NewString()}, {ID: strings.ToUpper(paid.String())}, {ID: alsoDue.String()},
	}
	outcomes, err := s.CancelDue(t.Context(), tasks)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []delay.Outcome{0: delay.Done(), 1: delay.Done(), 2: delay.Done(), 3: delay.RetryIn(100 * time.Millisecond),
		5: delay.Done(), 6: delay.Done(), 7: delay.Done()} {
		if i != 4 && outcomes[i] != want {
			t.Errorf("task %d, %s: %+v, want %+v", i, tasks[i].ID, outcomes[i], want)
		}
	}
	left, ok := retryOf(outcomes[4])
	if !ok || left > timeout || left < timeout-10*time.Second {
		t.Errorf("the early one is asked for in %v, %v", left, ok)
	}
	if s.available(t, a) != 10 || s.available(t, b) != 7 {
		t.Errorf("available are %d and %d, want 10 and 7", s.available(t, a), s.available(t, b))
	}

	again := s.cancelDue(t, due, alsoDue)
	if !slices.Equal(again, []delay.Outcome{delay.Done(), delay.Done()}) || s.available(t, a) != 10 {
		t.Errorf("again: %+v, %d available", again, s.available(t, a))
	}
	s.keepsPromise(t, time.Hour) // the held order is half an hour late
}

// retryOf reads from an outcome in what time it asks for its task again.
func retryOf(o delay.Outcome) (in time.Duration, ok bool) {
	v := reflect.ValueOf(o)
	return time.Duration(v.FieldByName("in").Int()), v.FieldByName("retry").Bool()
}

func TestAPoisonedOrderIsFound(t *testing.T) {
	s := newShop(t)
	customer, sound, broken := s.customer(t), s.product(t, 10), s.product(t, 10)
	good, poisoned := s.place(t, customer, line(sound, 1)).ID, s.place(t, customer, line(broken, 1)).ID
	s.exec(t, `UPDATE products SET supply = 9 WHERE id = $1`, broken) // its stock cannot be released
	s.expire(t, good)
	s.expire(t, poisoned)

	tasks := []delay.Task{{ID: good.String()}, {ID: poisoned.String()}}
	if outcomes, err := s.CancelDue(t.Context(), tasks); err == nil {
		t.Errorf("a batch with a poisoned task gave %v", outcomes)
	}
	if n, err := s.timeOut(t.Context(), 0, 10); n != 0 || err == nil || order.Unavailable(err) {
		t.Errorf("cancelled %d, %v: want 0 and an error of the statement", n, err)
	}
	if done, held, err := s.TimeOut(t.Context(), []string{good.String(), "foreign"}); done != 1 || held != 0 || err != nil {
		t.Errorf("%d cancelled, %d held, %v: want 1 and 0", done, held, err)
	}
	if s.available(t, sound) != 10 {
		t.Error("the good order's stock is not released")
	}
}

func TestCancelDueWithoutDatabase(t *testing.T) {
	s := newShop(t)
	o := s.place(t, s.customer(t), line(s.product(t, 1), 1))
	tasks := []delay.Task{{ID: o.ID.String()}, {ID: uuid.NewString()}}

	inASecond := func(t *testing.T, ctx context.Context) {
		s.givesBack(t, ctx, tasks, 500*time.Millisecond, 1500*time.Millisecond)
	}
	t.Run("the worker stops", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s.givesBack(t, ctx, tasks, 0, 0)
	})
	t.Run("the database hangs", func(t *testing.T) {
		holder, err := s.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Rollback()
		if _, err := holder.ExecContext(t.Context(), `LOCK orders`); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		inASecond(t, ctx)
	})
	t.Run("the database is gone", func(t *testing.T) {
		s.takeAway(t)
		inASecond(t, t.Context())
		if _, err := s.timeOut(t.Context(), 0, 10); err == nil {
			t.Error("cancelled overdue orders without a database")
		}
	})
}

// takeAway ends all connections to the database and allows no new ones.
func (s *shop) takeAway(t *testing.T) {
	t.Helper()
	name := query[string](t, s, `SELECT current_database()`)
	server, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	server.Path = "/postgres"
	admin, err := sql.Open("pgx", server.String())
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	for _, statement := range []string{
		`ALTER DATABASE ` + name + ` ALLOW_CONNECTIONS false`,
		`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '` + name + `'`,
	} {
		if _, err := admin.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
}

// givesBack checks that all tasks are to be asked for again in from min to max, without an error.
func (s *shop) givesBack(t *testing.T, ctx context.Context, tasks []delay.Task, least, most time.Duration) {
	t.Helper()
	outcomes, err := s.CancelDue(ctx, tasks)
	if err != nil || len(outcomes) != len(tasks) {
		t.Fatalf("%v, %v", outcomes, err)
	}
	for _, outcome := range outcomes {
		if in, ok := retryOf(outcome); !ok || in < least || in > most {
			t.Errorf("asked for in %v (%v), want %v to %v", in, ok, least, most)
		}
	}
}

func TestUnavailable(t *testing.T) {
	for code, want := range map[string]bool{
		"08006": true, "40P01": true, "53300": true, "57014": true, "57P01": true, "55P03": true, "25006": true, "58030": true,
		"42P01": true, "3F000": true, "42704": true, "23514": false, "22003": false, "42703": false, "XX000": false, "": false,
	} {
		if got := order.Unavailable(fmt.Errorf("cancel: %w", &pgconn.PgError{Code: code})); got != want {
			t.Errorf("SQLSTATE %q: unavailable %v, want %v", code, got, want)
		}
	}
}

func TestTimeOut(t *testing.T) {
	s := newShop(t)
	customer, product := s.customer(t), s.product(t, 10)
	for range 5 {
		s.expire(t, s.place(t, customer, line(product, 1)).ID)
	}
	s.place(t, customer, line(product, 1))

	for _, step := range []struct {
		grace time.Duration
		limit int
		want  int
	}{{2 * time.Hour, 10, 0}, {time.Minute, 2, 2}, {time.Minute, 10, 3}, {0, 10, 0}} {
		if n, err := s.timeOut(t.Context(), step.grace, step.limit); n != step.want || err != nil {
			t.Errorf("grace %v, limit %d: cancelled %d, %v, want %d", step.grace, step.limit, n, err, step.want)
		}
	}
	if s.available(t, product) != 9 {
		t.Errorf("%d available, want 9", s.available(t, product))
	}
	s.keepsPromise(t, 0)

	lateness, err := s.store.Lateness(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	late := (time.Hour - timeout).Seconds()
	if r := lateness.Reconciler; r.Count != 5 || r.P50 < late || r.P50 > late+60 || r.Max < r.P99 || r.P99 < r.P50 {
		t.Errorf("lateness is %+v, want 5 of about %v s by the reconciler", lateness, late)
	}
	if last := lateness.Histogram[len(lateness.Histogram)-1]; last != (order.Bucket{Reconciler: 5}) {
		t.Errorf("the last bucket of the histogram is %+v, want all 5", last)
	}
	if lateness.Worker != (order.Percentiles{}) {
		t.Errorf("lateness is %+v, want none by the worker", lateness)
	}
}

func TestBacklog(t *testing.T) {
	s := newShop(t)
	backlog := func() order.Backlog {
		b, err := s.store.Backlog(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if b := backlog(); b != (order.Backlog{}) {
		t.Errorf("of an empty shop: %+v", b)
	}
	customer, product := s.customer(t), s.product(t, 10)
	late := s.place(t, customer, line(product, 1)).ID
	s.place(t, customer, line(product, 1))
	if b := backlog(); b != (order.Backlog{Pending: 2}) {
		t.Errorf("with two orders in time: %+v", b)
	}
	s.expire(t, late)
	if b := backlog(); b.Pending != 2 || b.OldestOverdue < 1800 || b.OldestOverdue > 1900 {
		t.Errorf("with one half an hour late: %+v", b)
	}
}

func TestPending(t *testing.T) {
	s := newShop(t)
	customer, product := s.customer(t), s.product(t, 100)
	var want []string
	for i := range 7 {
		o := s.place(t, customer, line(product, 1))
		want = append(want, o.ID.String())
		if i == 3 || i == 4 { // the same deadline
			s.exec(t, `UPDATE orders SET expires_at = created_at + interval '1 hour' WHERE id = $1`, o.ID)
		}
	}
	s.exec(t, `UPDATE orders SET expires_at = (SELECT max(expires_at) FROM orders) WHERE id = ANY ($1)`, want[3:5])
	closed := s.place(t, customer, line(product, 1))
	if _, err := s.Pay(t.Context(), customer, closed.ID); err != nil {
		t.Fatal(err)
	}
	late := s.place(t, customer, line(product, 1)).ID
	s.expire(t, late)
	want = slices.Concat([]string{late.String()}, want[:3], want[5:], want[3:5])

	walk := func(ahead time.Duration, limit int) (ids []string, left []time.Duration) {
		for after, pages := "", 0; pages == 0 || after != ""; pages++ {
			i, l, next, err := s.store.Pending(t.Context(), after, ahead, limit)
			if err != nil || len(i) != len(l) || len(i) > limit {
				t.Fatal(len(i), len(l), err)
			}
			ids, left, after = append(ids, i...), append(left, l...), next
		}
		return ids, left
	}
	for _, limit := range []int{1, 2, 3, 8, 100} {
		ids, left := walk(-1, limit)
		if !slices.Equal(ids, want) {
			t.Errorf("pages of %d: %v, want %v", limit, ids, want)
		}
		if left[0] > -29*time.Minute || left[1] > timeout || left[1] < timeout-time.Minute {
			t.Errorf("left are %v", left)
		}
	}
	if ids, _ := walk(timeout, 2); !slices.Equal(ids, want[:6]) {
		t.Errorf("up to %v ahead: %v, want %v", timeout, ids, want[:6])
	}
	if ids, _ := walk(0, 2); !slices.Equal(ids, want[:1]) {
		t.Errorf("up to now: %v, want %v", ids, want[:1])
	}
	if _, _, _, err := s.store.Pending(t.Context(), "nonsense", -1, 10); err == nil {
		t.Error("took nonsense for a place to go on")
	}
}

func TestUnknown(t *testing.T) {
	s := newShop(t)
	o := s.place(t, s.customer(t), line(s.product(t, 1), 1))
	known, stranger := o.ID.String(), uuid.NewString()
	got, err := s.store.Unknown(t.Context(), []string{"no uuid", known, stranger, strings.ToUpper(known), ""})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	want := []string{"no uuid", stranger, strings.ToUpper(known), ""}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("unknown are %q, want %q", got, want)
	}
	if got, err := s.store.Unknown(t.Context(), nil); len(got) != 0 || err != nil {
		t.Errorf("of none %q are unknown, %v", got, err)
	}
}
