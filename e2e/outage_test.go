package e2e

import (
	"bufio"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

// published reads how many messages went which way: ok, failed or breaker_open.
func (c *client) published(result string) int {
	c.t.Helper()
	lines := bufio.NewScanner(strings.NewReader(string(c.get("/metrics").body)))
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "shop_delay_published_total") && strings.Contains(lines.Text(), `result="`+result+`"`) {
			n, err := strconv.Atoi(lines.Text()[strings.LastIndex(lines.Text(), " ")+1:])
			must(c.t, err)
			return n
		}
	}
	return 0
}

type stats struct {
	Redis  string
	Queue  *struct{ Scheduled, Due, Leased, Dead int }
	Orders struct {
		Pending int
		Overdue float64 `json:"oldest_overdue_seconds"`
	}
	Outbox     struct{ Backlog int }
	Violations []any
}

func (c *client) stats() stats {
	c.t.Helper()
	return into[stats](c.t, c.get("/ops/api/stats"))
}

// TestRedisOutage stops Redis under a shop: orders are taken all the same, each within the retry budget and,
// once the breaker is open, without it; Redis comes back, the backlog drains, every order is cancelled on time.
func TestRedisOutage(t *testing.T) {
	t.Parallel()
	redis := testenv.RedisServer(t)
	site := newSite(t, redis.URL(), "SHOP_ORDER_TIMEOUT=15s")
	p := site.serve(t)
	c, ops := p.signUp(), p.operator()
	orders := []order{c.place()}

	must(t, redis.Kill())
	const outage = 30
	var slowest, total time.Duration
	for range outage {
		a := c.expect(http.StatusCreated, request{method: "POST", path: "/api/orders", body: oneOfBeans})
		orders = append(orders, into[order](t, a))
		slowest, total = max(slowest, a.took), total+a.took
	}
	failed, open := ops.published("failed"), ops.published("breaker_open")
	t.Logf("%d orders without Redis: %v at most, %v on average; %d tried Redis, %d met the open breaker",
		outage, slowest, total/outage, failed, open)
	if slowest > 2*time.Second { // 100 ms, and what a loaded machine adds
		t.Errorf("an order took %v, its budget for Redis is 100 ms", slowest)
	}
	if failed < 5 || open < outage/2 || failed+open != outage {
		t.Errorf("%d of %d publishes tried, %d met the open breaker: want 5 tries, and one for each time it half-opens", failed, outage, open)
	}
	if ready := into[struct{ Status, Redis string }](t, ops.get("/readyz")); ready.Status != "degraded" || ready.Redis != "down" {
		t.Errorf("readyz says %+v", ready)
	}
	if s := ops.stats(); s.Redis != "down" || s.Queue != nil || s.Outbox.Backlog != outage {
		t.Errorf("stats %+v, want %d messages in the outbox", s, outage)
	}

	must(t, redis.Restart(t.Context()))
	eventually(t, "the backlog drained", func() bool { return ops.stats().Outbox.Backlog == 0 })
	var latest time.Duration
	for _, o := range orders {
		latest = max(latest, c.cancelledOnTime(o.ID))
	}
	t.Logf("the latest of %d cancellations was %v late", len(orders), latest)
	if latest > 5*time.Second { // the bound is one second for a live worker; a loaded machine gets more
		t.Errorf("cancelled %v late", latest)
	}
	site.healthy(t)
}

// TestRedisStaysDown: without any Redis the reconciler cancels, within its interval.
func TestRedisStaysDown(t *testing.T) {
	t.Parallel()
	redis := testenv.RedisServer(t)
	site := newSite(t, redis.URL())
	must(t, redis.Kill())
	p := site.serve(t) // starts without Redis, too
	c := p.signUp()
	stock := c.available(beans)
	o := c.place()
	late := c.cancelledOnTime(o.ID)
	t.Logf("cancelled %v late", late)
	if late > 15*time.Second {
		t.Errorf("cancelled %v late with an interval of 2 s and a grace of 2 s", late)
	}
	if got := c.available(beans); got != stock {
		t.Errorf("%d available, want %d", got, stock)
	}
}

// TestRedisWiped loses every task between placing and deadline.
func TestRedisWiped(t *testing.T) {
	t.Parallel()
	redis := testenv.RedisServer(t)
	site := newSite(t, redis.URL(), "SHOP_ORDER_TIMEOUT=8s")
	p := site.serve(t)
	c, ops := p.signUp(), p.operator()
	var orders []order
	for range 20 {
		orders = append(orders, c.place())
	}
	eventually(t, "all tasks in Redis", func() bool {
		s := ops.stats()
		return s.Queue != nil && s.Queue.Scheduled == len(orders) && s.Outbox.Backlog == 0
	})
	must(t, redis.Kill())
	must(t, redis.Restart(t.Context())) // empty
	var latest time.Duration
	for _, o := range orders {
		latest = max(latest, c.cancelledOnTime(o.ID))
	}
	t.Logf("the latest of %d cancellations was %v late", len(orders), latest)
	site.healthy(t)
}
