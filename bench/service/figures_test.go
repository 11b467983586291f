package service

import (
	"testing"
	"time"

	"example.com/shop/bench/loadtest"
	"example.com/shop/internal/faulttest"
)

// newFigureSite returns a site for one figure, with the products of the orders that [growthSite.addPending] inserts.
func newFigureSite(b *testing.B) *growthSite {
	b.Helper()
	return &growthSite{Site: loadtest.NewSite(b, orders, growthProducts), b: b}
}

// BenchmarkLateness measures how late orders are cancelled that become due during 10 seconds, 200 a second.
func BenchmarkLateness(b *testing.B) {
	s := newFigureSite(b)
	for b.Loop() {
		late := s.timeOut(10*growthRate, 1.0/growthRate)
		b.ReportMetric(loadtest.Milliseconds(late.p50), "p50-ms")
		b.ReportMetric(loadtest.Milliseconds(late.p99), "p99-ms")
		b.ReportMetric(loadtest.Milliseconds(late.last), "max-ms")
	}
}

// BenchmarkSchedule measures an answer of the operators' API about what is due when, with a million pending orders, of
// which 100,000 are due in the next hour and a half.
func BenchmarkSchedule(b *testing.B) {
	s := newFigureSite(b)
	s.addPending(900_000)
	s.addPendingIn(100_000, 5*time.Minute)
	for b.Loop() {
		b.ReportMetric(s.get(s.Process.Operator(), "/ops/api/schedule"), "median-ms")
	}
}

// BenchmarkIdle counts the commands that Redis processes in a minute, with 100,000 tasks scheduled and none due. The
// commands that scripts run count, too.
func BenchmarkIdle(b *testing.B) {
	s := newFigureSite(b)
	s.addPending(100_000)
	s.sweep() // sets the markers, so that no probe starts a sweep
	for b.Loop() {
		before := info(s.Site, "total_commands_processed")
		faulttest.Sleep(b.Context(), time.Minute)
		after := info(s.Site, "total_commands_processed")
		b.ReportMetric((after-before)/time.Minute.Seconds(), "commands/s")
	}
}
