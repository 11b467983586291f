package faulttest

import (
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

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

// CrashBeforeRedis kills an API that never reached Redis. Its message is in the outbox, and the relay of another
// process publishes it.
func CrashBeforeRedis(t *testing.T, s *Service) {
	testenv.Slow(t, "starts three processes")
	NeedsProcesses(t)
	t.Parallel()
	redis := testenv.RedisServer(t)
	site := s.NewSite(t, redis.URL(), s.TimeoutVariable()+"=6s")
	testenv.Must(t, redis.Kill())
	api := site.Serve(t, "--roles=api")
	c := api.SignUp()
	created := c.Create()
	api.Kill()
	testenv.Must(t, redis.Restart(t.Context()))

	c.Base = site.Serve(t, "--roles=api,relay,worker").URL // without a reconciler, which would also schedule the task
	c.WaitForTimeout(created.ID)
	site.Run(t, "reconcile")
	site.CheckHealth(t)
}

// RolesApart runs two processes of each role. Each API must show what a customer did at the other one. Each row
// must time out once, by any worker or reconciler.
func RolesApart(t *testing.T, s *Service) {
	testenv.Slow(t, "starts eight processes")
	NeedsProcesses(t)
	t.Parallel()
	site := s.NewSite(t, testenv.Redis(t))
	var apis []*Process
	for range 2 {
		apis = append(apis, site.Serve(t, "--roles=api"))
		for _, role := range []string{"relay", "worker", "reconciler"} {
			site.Serve(t, "--roles="+role)
		}
	}
	before := site.available(t)
	const confirmed = 5
	var rows []Owned
	for i := range 30 {
		created := apis[i%2].Create()
		rows = append(rows, created)
		if c := created.Customer; i < confirmed {
			c.Base = apis[(i+1)%2].URL
			c.confirm(created.Row)
		}
	}
	for i, api := range apis {
		api.WaitForTimeouts(slices.Concat(rows[confirmed:10], rows[10+10*i:20+10*i]))
	}
	if got, want := site.available(t), before-confirmed; s.Shared != nil && got != want {
		breach(t, "%d available, want %d: %d are confirmed", got, want, confirmed)
	}
	site.CheckHealth(t)
}

// Drain stops a process behind a load balancer that polls /readyz. After SIGTERM the process reports that it is not
// ready, and still serves for a while. So the requests that the load balancer sends before its next poll succeed.
func Drain(t *testing.T, s *Service) {
	testenv.Slow(t, "waits for a drain of six seconds")
	NeedsProcesses(t)
	t.Parallel()
	const drain = 6 * time.Second
	site := s.NewSite(t, testenv.Redis(t), EnvDrain+"="+drain.String())
	p := site.Serve(t)
	c := p.SignUp()
	before := c.Create()
	ready := func() bool {
		a, err := c.Try(Request{Method: "GET", Path: "/readyz"})
		return err == nil && a.Status == http.StatusOK
	}
	if !ready() {
		t.Fatal("/readyz reports that the process is not ready, before SIGTERM")
	}
	signalled := time.Now()
	testenv.Must(t, p.Cmd.Process.Signal(syscall.SIGTERM))
	for ready() {
		c.Look(before.ID)
	}
	a := c.Expect(http.StatusServiceUnavailable, Request{Method: "GET", Path: "/readyz"})
	Contains(t, string(a.Body), `"status":"stopping"`)
	c.confirm(c.Create())
	<-p.ended
	if took := time.Since(signalled); took < drain {
		t.Errorf("the listener closed %v after SIGTERM, want at least %v", took, drain)
	}
	if code := p.Cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}
