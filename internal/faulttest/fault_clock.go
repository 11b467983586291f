package faulttest

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

// faketime returns the environment of a server that libfaketime gives a clock of its own.
func faketime(t *testing.T, settings ...string) (env []string) {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if len(found) == 0 {
		testenv.Skip(t, "faketime", "libfaketime is not installed (Debian and Ubuntu: apt-get install faketime)")
	}
	return append([]string{
		// The allocator of redis-server reads the clock before libfaketime is ready. The allocator of libc does not.
		"LD_PRELOAD=" + found[0] + " libc.so.6",
		"FAKETIME_DONT_FAKE_MONOTONIC=1",
	}, settings...)
}

// jumpingClock is faketime for a clock that is some seconds ahead of the machine's, until the function jump changes
// that.
func jumpingClock(t *testing.T, ahead float64) (env []string, jump func(ahead float64)) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "clock")
	env = faketime(t, "FAKETIME_TIMESTAMP_FILE="+file, "FAKETIME_NO_CACHE=1")
	jump = func(ahead float64) {
		t.Helper()
		testenv.Must(t, os.WriteFile(file+".new", fmt.Appendf(nil, "%+.0f", ahead), 0o644))
		testenv.Must(t, os.Rename(file+".new", file))
	}
	jump(ahead)
	return env, jump
}

// brokenWaits counts the waits that PostgreSQL ended because of libfaketime. A signal handler that interrupts
// libfaketime reads the machine's clock instead of the server's. If the server's clock is behind the machine's,
// PostgreSQL's timer handler then finds that all timers have expired, and ends a wait for a lock, or for the next
// statement of a transaction, that began a millisecond ago. No test of clocks holds a lock or stops a process, so each
// of these timeouts has this cause.
func brokenWaits(d *Deployment) int {
	d.T.Helper()
	if d.Postgres == nil { // the shared server has the machine's clock
		return 0
	}
	log, err := d.Postgres.Log()
	testenv.Must(d.T, err)
	n := strings.Count(log, "canceling statement due to lock timeout") +
		strings.Count(log, "terminating connection due to idle-in-transaction timeout")
	if n > 0 {
		d.T.Logf("because of libfaketime, PostgreSQL ended %d waits for a lock or for a statement", n)
	}
	return n
}

// checkClocks checks how many seconds the servers' clocks are ahead of the machine's.
func (d *Deployment) checkClocks(redis, postgres float64) {
	d.T.Helper()
	check := func(server string, now, want float64) {
		d.T.Helper()
		ahead := now - float64(time.Now().UnixMilli())/1000
		if math.Abs(ahead-want) > 30 {
			d.T.Errorf("%s's clock is %v s ahead of the machine's, want %v s", server, ahead, want)
		}
	}
	now, err := d.RDB.Time(d.T.Context()).Result()
	testenv.Must(d.T, err)
	check("Redis", float64(now.Unix()), redis)
	check("PostgreSQL", d.Number(`SELECT extract(epoch FROM clock_timestamp())`), postgres)
}

// ClockFaults returns faults that set the servers' clocks two minutes apart from each other or from the service's. This
// delays no row, because the service never compares the times of two clocks. If Redis's clock jumps, the next sweep
// corrects the due times of the tasks. Without libfaketime the test is skipped.
func (*Service) ClockFaults(t *testing.T) (faults []Fault) {
	t.Helper()
	testenv.Slow(t, "servers with clocks of their own")
	const ahead, behind = 120, -120
	type clocks struct {
		*common
		jump func(ahead float64) // sets Redis's clock
	}
	byPostgres := map[float64]clocks{}
	for _, seconds := range []float64{0, ahead, behind} {
		redis, jump := jumpingClock(t, 0)
		var postgres []string // nil: the machine's clock
		if seconds != 0 {
			postgres = faketime(t, fmt.Sprintf("FAKETIME=%+.0f", seconds))
		}
		byPostgres[seconds] = clocks{&common{needs: Needs{RedisEnv: redis, PostgresEnv: postgres}}, jump}
	}
	for _, seconds := range []struct {
		name                  string
		redis, postgres, jump float64
	}{
		// The tasks that a jump back leaves are due two minutes later. A jump ahead makes them overdue while the worker
		// sleeps.
		{name: "Redis jumps back", jump: behind},
		{name: "Redis ahead", redis: ahead},
		{name: "Redis behind", redis: behind},
		{name: "Redis jumps ahead", jump: ahead},
		{name: "PostgreSQL ahead", postgres: ahead},
		{name: "all apart", redis: behind, postgres: ahead},
		{name: "service behind both", redis: ahead, postgres: ahead},
		{name: "PostgreSQL behind", postgres: behind},
		{name: "service ahead of both", redis: behind, postgres: behind},
	} {
		late := 3 * time.Second
		if seconds.jump != 0 {
			late = 8 * time.Second // the reconciler's interval and grace are 2 s each; the bound is twice their sum
		}
		clocks := byPostgres[seconds.postgres]
		faults = append(faults, Fault{
			Name: seconds.name, on: clocks.common,
			Bound: Bound{Late: late, Answer: 2 * time.Second}, excused: brokenWaits,
			Before: func() { clocks.jump(seconds.redis) },
			Inject: func(d *Deployment) {
				d.checkClocks(seconds.redis, seconds.postgres)
				d.Sleep(time.Second)
				clocks.jump(seconds.redis + seconds.jump)
				d.checkClocks(seconds.redis+seconds.jump, seconds.postgres)
				d.Sleep(2 * time.Second)
			},
		})
	}
	return faults
}
