package ops

import (
	"log/slog"
	"strconv"
	"testing"
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/timeout"
)

// seats is a kind of task that times out the rows of a table.
type seats struct {
	*app.Kind
	base *app.Base
}

// newSeats returns the kind of task that times out the rows of an empty table.
func newSeats(t *testing.T, shards int) seats {
	t.Helper()
	b, err := app.Connect(t.Context(), app.Config{
		Name: "test", DatabaseURL: testenv.Postgres(t), DatabaseConns: 2, RedisURL: testenv.Redis(t), QueueShards: shards,
	}, slog.New(slog.DiscardHandler))
	testenv.Must(t, err)
	t.Cleanup(b.Close)
	testenv.Exec(t, b.Pool,
		`CREATE TABLE seats (id uuid DEFAULT gen_random_uuid(), status text DEFAULT 'pending', until timestamptz)`)
	testenv.Exec(t, b.Pool, `CREATE INDEX seats_pending ON seats (until, id) WHERE status = 'pending'`)
	k, err := app.NewKind(b, "seats", timeout.Rows{Table: "seats", Due: "until"}, delay.WorkerConfig{})
	testenv.Must(t, err)
	return seats{k, b}
}

// insertSeats inserts n seats that are due after a time from now, each 10 µs after the one before.
func insertSeats(t *testing.T, k seats, n int, due time.Duration) {
	t.Helper()
	testenv.Exec(t, k.base.Pool,
		`INSERT INTO seats (until) SELECT clock_timestamp() + ($2::bigint + 10 * n) * interval '1 microsecond'
		FROM generate_series(1, $1) n`, n, due.Microseconds())
}

func (k seats) schedule(t *testing.T) *schedule {
	t.Helper()
	s, err := readSchedule(t.Context(), k.base.DB, k.Kind, time.Minute)
	testenv.Must(t, err)
	return s
}

// checkSpread compares the numbers of a lane from a time to a later one, both from the present, with those wanted.
// Nothing may be due before or after.
func checkSpread(t *testing.T, when string, s *schedule, lane *delay.Spread, from, to time.Duration, want int64) {
	t.Helper()
	var within, all int64
	for i, count := range lane.Counts {
		all += count
		start := s.From + float64(i)*s.Width
		if start+s.Width > from.Seconds() && start <= to.Seconds() {
			within += count
		}
	}
	if within != want || all != want || lane.Estimated {
		t.Errorf("%s: %d of %d are due %v to %v from now (estimated: %v), want all of %d",
			when, within, all, from, to, lane.Estimated, want)
	}
}

// TestSchedule reads the schedule of rows and tasks that are due at different times.
func TestSchedule(t *testing.T) {
	t.Parallel()
	k := newSeats(t, 1)
	s := k.schedule(t)
	if s.Width != 3 || s.From > -57 || s.From < -60 || len(s.Rows.Counts) != 60 || len(s.Tasks.Counts) != 60 {
		t.Errorf("the schedule is %+v, want 60 buckets of 3 s, of which 20 have begun", s)
	}
	checkSpread(t, "without rows", s, &s.Rows, 0, 0, 0)

	const busy = 20 * time.Second // a busy machine reads the schedule so much later
	insertSeats(t, k, 7, time.Minute)
	testenv.Must(t, k.Queue.Schedule(t.Context(), delay.In("1", time.Minute), delay.In("2", time.Minute)))
	s = k.schedule(t)
	checkSpread(t, "rows", s, &s.Rows, time.Minute-busy, time.Minute, 7)
	insertSeats(t, k, 3*scheduleRows, time.Minute)
	s = k.schedule(t)
	checkSpread(t, "many rows at once", s, &s.Rows, time.Minute-2*busy, time.Minute, 7+3*scheduleRows)
	checkSpread(t, "tasks", s, s.Tasks, time.Minute-busy, time.Minute, 2)

	testenv.Exec(t, k.base.Pool, `DELETE FROM seats`)
	insertSeats(t, k, 5, 3*time.Hour)
	insertSeats(t, k, scheduleRows+5, -3*time.Hour)
	testenv.Exec(t, k.base.Pool, `INSERT INTO seats (status, until) VALUES ('free', now())`)
	testenv.Must(t, k.base.Redis.FlushDB(t.Context()).Err())
	testenv.Must(t, k.Queue.Schedule(t.Context(), delay.In("3", -3*time.Hour), delay.In("4", 3*time.Hour)))
	s = k.schedule(t)
	checkSpread(t, "rows outside the buckets", s, &s.Rows, 0, 0, 0)
	checkSpread(t, "tasks outside the buckets", s, s.Tasks, 0, 0, 0)
	if s.Rows.Before != scheduleRows || s.Rows.Later != 5 || s.Tasks.Before != 1 || s.Tasks.Later != 1 {
		t.Errorf("the rows are %+v, the tasks %+v; want %d and 1 before the first bucket, and 5 and 1 after the last",
			s.Rows, *s.Tasks, scheduleRows)
	}

	k.base.Redis.Close()
	if s = k.schedule(t); s.Tasks != nil {
		t.Errorf("without Redis the tasks are %+v, want nil", s.Tasks)
	}
}

// TestScheduleEstimates has more rows than are counted, and more shards than are asked. The estimates may differ from
// the true numbers by a fifth. The statement must read only the index.
func TestScheduleEstimates(t *testing.T) {
	t.Parallel()
	k := newSeats(t, 2*16)
	const perBucket = 1000
	testenv.Exec(t, k.base.Pool,
		`INSERT INTO seats (until) SELECT now() + n * interval '3 ms' FROM generate_series(-20000, 40000) n`)
	testenv.Exec(t, k.base.Pool, `VACUUM ANALYZE seats`)
	var msgs []delay.Message
	for i := range 20_000 {
		msgs = append(msgs, delay.In(strconv.Itoa(i), time.Duration(i)*3*time.Millisecond))
	}
	testenv.Must(t, k.Queue.Schedule(t.Context(), msgs...))
	s := k.schedule(t)
	if !s.Rows.Estimated || !s.Tasks.Estimated {
		t.Errorf("the numbers are estimates: %v of the rows, %v of the tasks; want both", s.Rows.Estimated,
			s.Tasks.Estimated)
	}
	near := func(count int64) bool { return count > perBucket*4/5 && count < perBucket*6/5 }
	for i := 21; i < 35; i++ { // a bucket at the ends of the rows may be partly filled
		if !near(s.Rows.Counts[i]) || i < 25 && !near(s.Tasks.Counts[i]) {
			t.Errorf("bucket %d has %d rows and %d tasks, want about %d", i, s.Rows.Counts[i], s.Tasks.Counts[i],
				perBucket)
		}
	}
	plan := testenv.Explain(t, k.base.Pool, scheduleOf(k.Rows), "3000000, 20, 60, 300, 300")
	testenv.CheckPlan(t, plan, []string{"Index Only Scan using seats_pending"}, "seats")
}
