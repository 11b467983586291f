package faulttest

import (
	"testing"

	"example.com/shop/internal/testenv"
)

// Crash kills the process right after its responses. Another process must find the rows and time them out.
func Crash(t *testing.T, s *Service) {
	NeedsProcesses(t)
	t.Parallel()
	site := s.NewSite(t, testenv.Redis(t), s.TimeoutVariable()+"=5s")
	p := site.Serve(t)
	var rows []Owned
	for range 20 {
		rows = append(rows, p.Create())
	}
	p.Kill()

	site.Serve(t).WaitForTimeouts(rows)
	site.CheckHealth(t)
}
