package e2e

import (
	"net/http"
	"syscall"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

// TestKilledAfter201 kills everything right after the answers: another process finds the orders and
// cancels them on time.
func TestKilledAfter201(t *testing.T) {
	t.Parallel()
	site := newSite(t, testenv.Redis(t), "SHOP_ORDER_TIMEOUT=5s")
	p := site.serve(t)
	c := p.signUp()
	var orders []order
	for range 20 {
		orders = append(orders, c.place())
	}
	p.kill()

	c.base = site.serve(t).url
	for _, o := range orders {
		c.cancelledOnTime(o.ID)
	}
	site.healthy(t)
}

// TestKilledBeforeRedis kills an API that never reached Redis: what it promised is in the outbox, and a relay
// of another process brings it.
func TestKilledBeforeRedis(t *testing.T) {
	t.Parallel()
	redis := testenv.RedisServer(t)
	site := newSite(t, redis.URL(), "SHOP_ORDER_TIMEOUT=6s")
	must(t, redis.Kill())
	api := site.serve(t, "--roles=api")
	c := api.signUp()
	o := c.place()
	api.kill()
	must(t, redis.Restart(t.Context()))

	c.base = site.serve(t, "--roles=api,relay,worker").url // no reconciler: the relay alone must do it
	c.cancelledOnTime(o.ID)
	site.run(t, "reconcile")
	site.healthy(t)
}

// TestKilledWorker kills a worker while orders come due. What it had claimed is delivered to another one
// when its lease ends.
func TestKilledWorker(t *testing.T) {
	t.Parallel()
	site := newSite(t, testenv.Redis(t), "SHOP_ORDER_TIMEOUT=2s")
	api := site.serve(t, "--roles=api,relay")
	doomed := site.serve(t, "--roles=worker")
	c := api.signUp()
	var orders []order
	for range 40 {
		orders = append(orders, c.place())
	}
	eventually(t, "the worker works", func() bool { return c.order(orders[0].ID).Status == "cancelled" })
	doomed.kill()
	site.serve(t, "--roles=worker")
	var latest time.Duration
	for _, o := range orders {
		latest = max(latest, c.cancelledOnTime(o.ID))
	}
	t.Logf("the latest of %d cancellations was %v late", len(orders), latest)
	site.run(t, "reconcile")
	site.healthy(t)
}

// TestRolesApart runs two processes of each role. Customers of one API see what they did at the other, and
// each order is cancelled once, by whomever.
func TestRolesApart(t *testing.T) {
	t.Parallel()
	site := newSite(t, testenv.Redis(t))
	var apis []*process
	for range 2 {
		apis = append(apis, site.serve(t, "--roles=api"))
		for _, role := range []string{"relay", "worker", "reconciler"} {
			site.serve(t, "--roles="+role)
		}
	}
	c := apis[0].signUp()
	stock := c.available(beans)
	var orders []order
	for i := range 30 {
		c.base = apis[i%2].url
		orders = append(orders, c.place())
	}
	for _, o := range orders[:10] {
		c.post(http.StatusOK, "/api/orders/"+o.ID+"/pay")
	}
	for _, o := range orders[10:] {
		c.cancelledOnTime(o.ID)
	}
	if got := c.available(beans); got != stock-10 {
		t.Errorf("%d available, want %d: ten are paid", got, stock-10)
	}
	site.healthy(t)
}

// TestDrain stops a process behind a load balancer that looks at /readyz: after the process was told to stop it says
// that it is not ready, and still serves. No request fails that was sent because the last look found it ready.
func TestDrain(t *testing.T) {
	t.Parallel()
	const drain = 2 * time.Second
	site := newSite(t, testenv.Redis(t), "SHOP_DRAIN="+drain.String())
	p := site.serve(t)
	c := p.signUp()
	ready := func() bool {
		a, err := c.try(request{method: "GET", path: "/readyz"})
		return err == nil && a.status == http.StatusOK
	}
	if !ready() {
		t.Fatal("not ready before it was told to stop")
	}
	must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	told := time.Now()
	for ready() {
		c.get("/api/products")
	}
	a := c.expect(http.StatusServiceUnavailable, request{method: "GET", path: "/readyz"})
	contains(t, string(a.body), `"status":"stopping"`)
	o := c.place()
	c.post(http.StatusOK, "/api/orders/"+o.ID+"/pay")
	<-p.ended
	if took := time.Since(told); took < drain {
		t.Errorf("the listener closed after %v, want %v", took, drain)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestGracefulStop stops a shop that is being asked: every request that was accepted is answered.
func TestGracefulStop(t *testing.T) {
	t.Parallel()
	site := newSite(t, testenv.Redis(t))
	p := site.serve(t)
	c := p.signUp()
	answered, stopped := make(chan int), make(chan struct{})
	go func() {
		defer close(answered)
		for {
			a, err := c.try(request{method: "GET", path: "/api/products"})
			select {
			case <-stopped:
				return
			default:
			}
			if err != nil {
				return // the next connection was refused: it stops
			}
			answered <- a.status
		}
	}()
	for range 50 {
		if status := <-answered; status != http.StatusOK {
			t.Errorf("answered %d", status)
		}
	}
	took := make(chan time.Duration, 1)
	go func() { took <- p.interrupt() }()
	for status := range answered {
		if status != http.StatusOK {
			t.Errorf("answered %d while it stopped", status)
		}
	}
	close(stopped)
	t.Logf("stopped in %v", <-took)
}
