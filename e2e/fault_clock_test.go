package e2e

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

// faketime is the environment of a server with a clock of its own.
func faketime(t *testing.T, settings ...string) (env []string) {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if len(found) == 0 {
		testenv.Skip(t, "faketime", "no libfaketime (Debian and Ubuntu: apt-get install faketime)")
	}
	return append([]string{
		// The allocator of redis-server asks for the time before the library is ready; libc's does not.
		"LD_PRELOAD=" + found[0] + " libc.so.6",
		"FAKETIME_DONT_FAKE_MONOTONIC=1",
	}, settings...)
}

// shifted is the environment of a server whose clock is some seconds ahead of the machine's.
func shifted(t *testing.T, ahead float64) (env []string) {
	t.Helper()
	return faketime(t, fmt.Sprintf("FAKETIME=%+.0f", ahead))
}

// jumping is shifted, with a clock that jumps when told.
func jumping(t *testing.T, ahead float64) (env []string, jump func(ahead float64)) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "clock")
	env = faketime(t, "FAKETIME_TIMESTAMP_FILE="+file, "FAKETIME_NO_CACHE=1")
	jump = func(ahead float64) {
		t.Helper()
		must(t, os.WriteFile(file+".new", fmt.Appendf(nil, "%+.0f", ahead), 0o644))
		must(t, os.Rename(file+".new", file))
	}
	jump(ahead)
	return env, jump
}

// brokenLocks counts the statements that PostgreSQL ended because of libfaketime. A signal handler that interrupts
// libfaketime gets the machine's true time. If the server's clock is behind that, PostgreSQL's handler of timers
// finds that all of them have run out, and ends a wait for a lock that began a millisecond ago. No test here holds
// a lock for as long as lock_timeout, so there is no other reason.
func brokenLocks(d *deployment) int {
	d.t.Helper()
	if d.postgres == nil { // has the machine's clock
		return 0
	}
	log, err := d.postgres.Log()
	must(d.t, err)
	n := strings.Count(log, "canceling statement due to lock timeout")
	if n > 0 {
		d.t.Logf("libfaketime broke %d waits for a lock", n)
	}
	return n
}

// apart checks what the servers' clocks say, in seconds ahead of the machine's.
func (d *deployment) apart(redis, postgres float64) {
	d.t.Helper()
	check := func(server string, says, want float64) {
		d.t.Helper()
		ahead := says - float64(time.Now().UnixMilli())/1000
		if math.Abs(ahead-want) > 5 {
			d.t.Errorf("%s's clock is %v s ahead, want %v", server, ahead, want)
		}
	}
	says, err := d.rdb.Time(d.t.Context()).Result()
	must(d.t, err)
	check("Redis", float64(says.Unix()), redis)
	check("PostgreSQL", d.number(`SELECT extract(epoch FROM clock_timestamp())`), postgres)
}

// TestClockFaults: no two clocks are compared, so servers that are two minutes apart, from each other or
// from the service, cost nothing. Tasks that a jump would make late are moved by the next sweep.
func TestClockFaults(t *testing.T) {
	const ahead, behind = 120, -120
	var faults []fault
	for name, seconds := range map[string]struct{ redis, postgres, jump float64 }{
		"Redis ahead":           {redis: ahead},
		"Redis behind":          {redis: behind},
		"Redis jumps ahead":     {jump: ahead},
		"Redis jumps back":      {jump: behind},
		"PostgreSQL ahead":      {postgres: ahead},
		"PostgreSQL behind":     {postgres: behind},
		"service behind both":   {redis: ahead, postgres: ahead},
		"service ahead of both": {redis: behind, postgres: behind},
		"all apart":             {redis: behind, postgres: ahead},
	} {
		late := 3 * time.Second
		if seconds.jump != 0 {
			late = 8 * time.Second // an interval of the reconciler, a grace, and as much again
		}
		redis, jump := jumping(t, seconds.redis)
		var postgres []string // nil: the machine's clock
		if seconds.postgres != 0 {
			postgres = shifted(t, seconds.postgres)
		}
		faults = append(faults, fault{
			name: name, needs: needs{redisEnv: redis, postgresEnv: postgres}, excused: brokenLocks, bound: bound{late: late, answer: 2 * time.Second},
			before: func() { jump(seconds.redis) },
			inject: func(d *deployment) {
				d.apart(seconds.redis, seconds.postgres)
				d.hold(time.Second)
				jump(seconds.redis + seconds.jump)
				d.apart(seconds.redis+seconds.jump, seconds.postgres)
				d.hold(2 * time.Second)
			},
		})
	}
	runFaults(t, faults)
}
