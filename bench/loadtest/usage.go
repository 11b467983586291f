package loadtest

import (
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

// Usage is processor time.
type Usage struct{ Service, Postgres, Redis, Clients time.Duration }

// Usage returns the processor time used so far. That of the clients is the test's own.
func (s *Site) Usage() Usage {
	s.T.Helper()
	var self syscall.Rusage
	testenv.Must(s.T, syscall.Getrusage(syscall.RUSAGE_SELF, &self))
	return Usage{
		Service:  ProcessorTime(s.T, s.Process.Cmd.Process.Pid),
		Postgres: ProcessorTime(s.T, s.servers.Postgres.Pid()),
		Redis:    ProcessorTime(s.T, s.servers.Redis.Pid()),
		Clients:  time.Duration(self.Utime.Nano() + self.Stime.Nano()),
	}
}

// Since returns what was used since an earlier usage.
func (u Usage) Since(before Usage) Usage {
	return Usage{
		u.Service - before.Service, u.Postgres - before.Postgres, u.Redis - before.Redis, u.Clients - before.Clients,
	}
}

// Each returns the part of one of n orders.
func (u Usage) Each(n int) Usage {
	d := time.Duration(max(n, 1))
	return Usage{u.Service / d, u.Postgres / d, u.Redis / d, u.Clients / d}
}

// Total returns the processor time without that of the clients.
func (u Usage) Total() time.Duration { return u.Service + u.Postgres + u.Redis }

// ProcessorTime returns the processor time that a process and its children have used, including the children that have
// ended.
func ProcessorTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	const tick = time.Second / 100 // the unit of /proc/PID/stat
	const user, ended = 11, 13     // the indexes of utime and cutime; stime and cstime follow
	sum := func(fields []string, indexes ...int) (ticks time.Duration) {
		if len(fields) == 0 {
			return 0
		}
		for _, i := range indexes {
			n, err := strconv.Atoi(fields[i])
			testenv.Must(t, err)
			ticks += time.Duration(n)
		}
		return ticks * tick
	}
	total := sum(faulttest.StatOf(pid), user, user+1, ended, ended+1)
	for _, child := range faulttest.ChildrenOf(t, pid) {
		total += sum(faulttest.StatOf(child), user, user+1)
	}
	return total
}

// Median returns the median of the values, of which there is at least one.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// Spread returns the median, the least and the greatest of the values as a text. 0 means that a value is unknown.
func Spread(values []float64, format string) string {
	if slices.Max(values) == 0 {
		return "–"
	}
	return fmt.Sprintf(format+" ("+format+"–"+format+")", Median(values), slices.Min(values), slices.Max(values))
}

// Milliseconds returns a duration in milliseconds.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
