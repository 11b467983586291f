package e2e

import (
	"errors"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

// crash kills the process right after its responses. Another process must find the items and time them
// out.
func crash(t *testing.T, s *service) {
	t.Parallel()
	site := s.newSite(t, testenv.Redis(t), s.timeoutVariable()+"=5s")
	p := site.serve(t)
	var items []owned
	for range 20 {
		items = append(items, p.create())
	}
	p.kill()

	site.serve(t).waitForTimeouts(items)
	site.checkHealth(t)
}

// crashBeforeRedis kills an API that never reached Redis. Its message is in the outbox, and the relay of another
// process publishes it.
func crashBeforeRedis(t *testing.T, s *service) {
	t.Parallel()
	redis := testenv.RedisServer(t)
	site := s.newSite(t, redis.URL(), s.timeoutVariable()+"=6s")
	testenv.Must(t, redis.Kill())
	api := site.serve(t, "--roles=api")
	c := api.signUp()
	created := c.create()
	api.kill()
	testenv.Must(t, redis.Restart(t.Context()))

	c.base = site.serve(t, "--roles=api,relay,worker").url // without a reconciler, which would also schedule the task
	c.waitForTimeout(created.id)
	site.run(t, "reconcile")
	site.checkHealth(t)
}

// rolesApart runs two processes of each role. Each API must show what a customer did at the other one. Each item
// must time out once, by any worker or reconciler.
func rolesApart(t *testing.T, s *service) {
	t.Parallel()
	site := s.newSite(t, testenv.Redis(t))
	var apis []*process
	for range 2 {
		apis = append(apis, site.serve(t, "--roles=api"))
		for _, role := range []string{"relay", "worker", "reconciler"} {
			site.serve(t, "--roles="+role)
		}
	}
	someone := apis[0].signUp()
	before := s.available(someone)
	const confirmed = 5
	var items []owned
	for i := range 30 {
		created := apis[i%2].create()
		items = append(items, created)
		if c := created.customer; i < confirmed {
			c.base = apis[(i+1)%2].url
			c.confirm(created.id)
		}
	}
	for i, api := range apis {
		api.waitForTimeouts(slices.Concat(items[confirmed:10], items[10+10*i:20+10*i]))
	}
	if got, want := s.available(someone), before-confirmed; s.resources != nil && got != want {
		t.Errorf("%d available, want %d: %d are confirmed", got, want, confirmed)
	}
	site.checkHealth(t)
}

// drain stops a process behind a load balancer that polls /readyz. After SIGTERM the process reports that it is not
// ready, and still serves for a while. So the requests that the load balancer sends before its next poll succeed.
func drain(t *testing.T, s *service) {
	t.Parallel()
	const drain = 6 * time.Second
	site := s.newSite(t, testenv.Redis(t), envDrain+"="+drain.String())
	p := site.serve(t)
	c := p.signUp()
	before := c.create()
	ready := func() bool {
		a, err := c.try(request{method: "GET", path: "/readyz"})
		return err == nil && a.status == http.StatusOK
	}
	if !ready() {
		t.Fatal("/readyz reports that the process is not ready, before SIGTERM")
	}
	signalled := time.Now()
	testenv.Must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	for ready() {
		c.look(before.id)
	}
	a := c.expect(http.StatusServiceUnavailable, request{method: "GET", path: "/readyz"})
	contains(t, string(a.body), `"status":"stopping"`)
	c.confirm(c.create().id)
	<-p.ended
	if took := time.Since(signalled); took < drain {
		t.Errorf("the listener closed %v after SIGTERM, want at least %v", took, drain)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// gracefulStop stops a process under load. The process must answer every request that it has accepted.
func gracefulStop(t *testing.T, s *service) {
	t.Parallel()
	site := s.newSite(t, testenv.Redis(t))
	p := site.serve(t)
	c := p.signUp()
	created := c.create()
	statuses := make(chan int)
	go func() {
		defer close(statuses)
		for {
			a, err := c.try(s.get(created.id))
			if errors.Is(err, syscall.ECONNREFUSED) {
				return // the listener is closed
			}
			if err != nil {
				t.Errorf("a request fails with %v, want an answer, or a refused connection after SIGTERM", err)
				return
			}
			statuses <- a.status
		}
	}()
	for range 50 {
		if status := <-statuses; status != http.StatusOK {
			t.Errorf("status %d, want 200", status)
		}
	}
	took := make(chan time.Duration, 1)
	go func() { took <- p.interrupt() }()
	for status := range statuses {
		if status != http.StatusOK {
			t.Errorf("status %d while the process stopped, want 200", status)
		}
	}
	t.Logf("stopped in %v", <-took)
}
