package e2e

import (
	"bufio"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

// published returns the number of publishes with a result, from the metrics: ok, failed or breaker_open.
func (c *client) published(result string) int {
	c.t.Helper()
	return int(c.metric("delay_published_total", `result="`+result+`"`))
}

// metric returns the value of the first metric with a name, without the prefix, and with all the labels. It returns 0 if
// there is none.
func (c *client) metric(name string, labels ...string) float64 {
	c.t.Helper()
	lines := bufio.NewScanner(strings.NewReader(string(c.get("/metrics").body)))
	for lines.Scan() {
		series, value, _ := strings.Cut(lines.Text(), " ")
		family, given, _ := strings.Cut(series, "{")
		lacks := func(label string) bool { return !strings.Contains(given, label) }
		if family != c.service.program+"_"+name || slices.ContainsFunc(labels, lacks) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		testenv.Must(c.t, err)
		return n
	}
	return 0
}

// stats are some of the operators' figures.
type stats struct {
	Redis  string
	Queue  *struct{ Scheduled int }
	Outbox struct{ Backlog int }
}

func (c *client) stats() stats {
	c.t.Helper()
	return decode[stats](c.t, c.get("/ops/api/stats"))
}

// redisDown runs the service while Redis is down from the start. Items are created: at first each publish takes at most its
// budget, and once the breaker is open it takes no time. The reconciler times them out within its interval and grace. When
// Redis is back, the relay publishes the backlog, and the worker times out the next item.
func redisDown(t *testing.T, s *service) {
	t.Parallel()
	redis := testenv.RedisServer(t)
	site := s.newSite(t, redis.URL())
	testenv.Must(t, redis.Kill())
	p := site.serve(t)
	ops := p.operator()
	before := s.available(p.signUp())

	const outage = 30
	var items []owned
	var times []time.Duration
	for range outage {
		c := p.signUp()
		a := c.expect(http.StatusCreated, s.create(s.bodies[0], ""))
		items = append(items, owned{c.item(a), c})
		times = append(times, a.took)
	}
	slices.Sort(times)
	// A slow machine may delay one or two requests. Without the budget, each publish before the breaker opens is slow.
	thirdSlowest := times[outage-3]
	var failed, open int
	eventually(t, "the publish of each item has ended", func() bool {
		failed, open = ops.published("failed"), ops.published("breaker_open")
		return failed+open >= outage
	})
	t.Logf("%d items created without Redis within %v; %d publishes failed, %d found the breaker open", outage, times[outage-1], failed, open)
	if thirdSlowest > 2*time.Second { // the budget, and the delays of a loaded machine
		t.Errorf("creating each of three items took %v or more; its budget for publishing is 100 ms", thirdSlowest)
	}
	if failed < 5 || open < outage/2 || failed+open != outage {
		t.Errorf("%d publishes failed and %d found the breaker open; want %d in total, at least 5 failed and at least %d with an open breaker",
			failed, open, outage, outage/2)
	}
	if ready := decode[struct{ Status, Redis string }](t, ops.get("/readyz")); ready.Status != "degraded" || ready.Redis != "down" {
		t.Errorf("/readyz: %+v, want degraded, with Redis down", ready)
	}
	if s := ops.stats(); s.Redis != "down" || s.Queue != nil || s.Outbox.Backlog != outage {
		t.Errorf("stats %+v, want Redis down and %d messages in the outbox", s, outage)
	}
	// The interval and the grace are 2 s each. A loaded machine gets more.
	if latest := p.waitForTimeouts(items); latest > 15*time.Second {
		t.Errorf("an item timed out %v late without Redis, the bound is 15 s", latest)
	}
	if got := s.available(items[0].customer); got != before {
		t.Errorf("%d available after the timeouts, want %d", got, before)
	}

	testenv.Must(t, redis.Restart(t.Context()))
	eventually(t, "the outbox is empty", func() bool { return ops.stats().Outbox.Backlog == 0 })
	if latest := p.waitForTimeouts([]owned{p.create()}); latest > 5*time.Second {
		t.Errorf("an item timed out %v late after Redis came back, the bound is 5 s", latest)
	}
	site.checkHealth(t)
}
