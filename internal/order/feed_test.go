package order_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
)

// process is what one process of a shop has of the feed, behind a server with tight timeouts.
type process struct {
	*order.Service
	shop   *shop
	tokens *order.Tokens
	url    string
	stop   func() // ends the feed, as a shutdown does
}

// newProcess starts a process of a shop; those with the same Redis hear each other.
func newProcess(t *testing.T, s *shop, redisURL string) *process {
	t.Helper()
	rdb, err := delay.Connect(redisURL)
	if err != nil {
		t.Fatal(err)
	}
	log, metrics := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	announcer, feed := order.NewAnnouncer(rdb, log, metrics), order.NewFeed(rdb, log, metrics)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- announcer.Run(ctx) }()
	go func() { ended <- feed.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, <-ended); err != nil {
			t.Error(err)
		}
		rdb.Close()
	})

	tokens, err := order.NewTokens(tokenKey)
	if err != nil {
		t.Fatal(err)
	}
	service := order.NewService(s.store, s.published, announcer, order.Config{Timeout: timeout}, log, metrics)
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	service.Routes(r, tokens, feed)
	server := httptest.NewUnstartedServer(r)
	// Any stream of the tests below that lives on these has lifted them.
	server.Config.ReadTimeout, server.Config.WriteTimeout = time.Millisecond*50, time.Millisecond*50
	server.Start()
	t.Cleanup(server.Close)
	return &process{Service: service, shop: s, tokens: tokens, url: server.URL, stop: cancel}
}

// listen opens a customer's stream, whose events come from the channel until the stream ends.
func (p *process) listen(t *testing.T, customer uuid.UUID) <-chan string {
	t.Helper()
	status, body := p.connect(t, customer)
	if status != http.StatusOK {
		t.Fatalf("answer %d", status)
	}
	events := make(chan string, 1000)
	go func() {
		defer close(events)
		name := ""
		for lines := bufio.NewScanner(body); lines.Scan(); {
			field, value, _ := strings.Cut(lines.Text(), ": ")
			switch field {
			case "event":
				name = value
			case "data":
				events <- name + " " + value
			}
		}
	}()
	return events
}

func (p *process) connect(t *testing.T, customer uuid.UUID) (status int, body io.ReadCloser) {
	t.Helper()
	token, err := p.tokens.Issue(customer)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+order.StreamPath, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := (&http.Client{Transport: &http.Transport{}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if got := resp.Header.Get("Content-Type"); resp.StatusCode == http.StatusOK && got != "text/event-stream" {
		t.Errorf("a stream of the type %s", got)
	}
	return resp.StatusCode, resp.Body
}

// next returns the events up to the one that is awaited.
func next(t *testing.T, events <-chan string, awaited string) (all []string) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	for {
		select {
		case e, open := <-events:
			all = append(all, e)
			if !open {
				t.Fatalf("stream ended after %q, before %q", all, awaited)
			}
			if e == awaited {
				return all
			}
		case <-deadline.C:
			t.Fatalf("after %q no %q", all, awaited)
		}
	}
}

const live, notLive = `state {"live":true}`, `state {"live":false}`

func changed(o *order.Order) string { return `order {"id":"` + o.ID.String() + `"}` }

// TestFeed changes orders in one process and listens in another: each customer hears of their own orders
// alone, and everyone that stock changed.
func TestFeed(t *testing.T) {
	s, url := newShop(t), testenv.Redis(t)
	here, there := newProcess(t, s, url), newProcess(t, s, url)
	mine, other, product := s.customer(t), s.customer(t), s.product(t, 10)
	events, others := there.listen(t, mine), there.listen(t, other)
	next(t, events, live)
	next(t, others, live)

	place := func() *order.Order {
		o, _, err := here.Place(t.Context(), mine, order.Placement{Lines: []order.Line{line(product, 1)}})
		if err != nil {
			t.Fatal(err)
		}
		next(t, events, changed(o))
		return o
	}
	paid, cancelled, late, overdue := place(), place(), place(), place()
	if _, err := here.Pay(t.Context(), mine, paid.ID); err != nil {
		t.Fatal(err)
	}
	next(t, events, changed(paid))
	if _, err := here.Cancel(t.Context(), mine, cancelled.ID); err != nil {
		t.Fatal(err)
	}
	next(t, events, changed(cancelled))
	s.expire(t, late.ID)
	if _, err := here.CancelDue(t.Context(), []delay.Task{{ID: late.ID.String()}}); err != nil {
		t.Fatal(err)
	}
	next(t, events, changed(late))
	s.expire(t, overdue.ID)
	if _, _, err := here.TimeOut(t.Context(), []string{overdue.ID.String()}); err != nil {
		t.Fatal(err)
	}
	next(t, events, changed(overdue))

	s.exec(t, `UPDATE products SET supply = 11, available = available + 1 WHERE id = $1`, product)
	last, _, err := here.Place(t.Context(), other, order.Placement{Lines: []order.Line{line(product, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range next(t, others, changed(last)) {
		if strings.HasPrefix(e, "order") && e != changed(last) {
			t.Errorf("a customer is told of another's %s", e)
		}
	}
}

// TestFeedWithoutRedis kills Redis under an open stream, and starts it again.
func TestFeedWithoutRedis(t *testing.T) {
	s, redis := newShop(t), testenv.RedisServer(t)
	p := newProcess(t, s, redis.URL())
	customer, product := s.customer(t), s.product(t, 10)
	events := p.listen(t, customer)
	next(t, events, live)
	redis.Kill()
	next(t, events, notLive)
	if _, _, err := p.Place(t.Context(), customer, order.Placement{Lines: []order.Line{line(product, 1)}}); err != nil {
		t.Fatalf("without a feed nothing can be ordered: %v", err)
	}
	if err := redis.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	next(t, events, live)
	o, _, err := p.Place(t.Context(), customer, order.Placement{Lines: []order.Line{line(product, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	next(t, events, changed(o))
}

// TestFeedTellsTheLast changes more orders than one message holds, just before the process stops.
func TestFeedTellsTheLast(t *testing.T) {
	rdb, err := delay.Connect(testenv.Redis(t))
	if err != nil {
		t.Fatal(err)
	}
	defer rdb.Close()
	metrics := prometheus.NewRegistry()
	announcer := order.NewAnnouncer(rdb, slog.New(slog.DiscardHandler), metrics)
	sub := rdb.Subscribe(t.Context(), order.FeedChannel)
	defer sub.Close()
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	const hints = 3000
	last := uuid.New()
	for range hints - 1 {
		announcer.Announce(uuid.New(), uuid.New())
	}
	announcer.Announce(uuid.New(), last)
	ended, end := context.WithCancel(t.Context())
	end()
	if err := announcer.Run(ended); err != nil {
		t.Fatal(err)
	}
	for ctx := deadline(t); ; {
		message, err := sub.ReceiveMessage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(message.Payload, last.String()) {
			return
		}
	}
}

// deadline is for a machine under heavy load.
func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// TestFeedEnds stops a process with open streams: they end, and there are no new ones.
func TestFeedEnds(t *testing.T) {
	s := newShop(t)
	p := newProcess(t, s, testenv.Redis(t))
	customer := s.customer(t)
	events := p.listen(t, customer)
	next(t, events, live)
	p.stop()
	eventually(t, "the stream ended", func() bool {
		select {
		case _, open := <-events:
			return !open
		default:
			return false
		}
	})
	if status, _ := p.connect(t, customer); status != http.StatusServiceUnavailable {
		t.Errorf("a new stream after the end: %d", status)
	}
}

// TestFeedLeavesConnections opens more streams than a browser could without losing its other requests: the oldest gives way.
func TestFeedLeavesConnections(t *testing.T) {
	s := newShop(t)
	p := newProcess(t, s, testenv.Redis(t))
	customer := s.customer(t)
	others := p.listen(t, s.customer(t))
	first, second := p.listen(t, customer), p.listen(t, customer)
	p.listen(t, customer)
	next(t, first, `replaced {}`)
	if _, open := <-first; open {
		t.Error("the oldest of three streams goes on")
	}
	o, _, err := p.Place(t.Context(), customer, order.Placement{Lines: []order.Line{line(s.product(t, 1), 1)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range next(t, second, changed(o)) {
		if strings.HasPrefix(e, "replaced") {
			t.Error("more than the oldest stream was ended")
		}
	}
	next(t, others, `products {}`)
}

// TestFeedDropsSlowReaders has a reader that takes nothing, and one that does.
func TestFeedDropsSlowReaders(t *testing.T) {
	f := order.NewFeed(nil, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	slowly, quickly := uuid.New(), uuid.New()
	slow, err := f.Join(slowly)
	if err != nil {
		t.Fatal(err)
	}
	quick, err := f.Join(quickly)
	if err != nil {
		t.Fatal(err)
	}
	message := fmt.Sprintf(`[{"customer":%q,"order":%q},{"customer":%q,"order":%q}]`, slowly, uuid.New(), quickly, uuid.New())
	for range 1000 {
		f.Receive(message)
		<-quick.News()
	}
	n := 0
	for range slow.News() { // ends only if the stream was ended
		n++
	}
	if n == 0 || n > 100 {
		t.Errorf("%d pieces of news kept for a reader who takes none", n)
	}
	f.Leave(slow) // again: as its handler does
	f.Leave(quick)
	if _, err := f.Join(uuid.New()); err != nil {
		t.Error(err)
	}
}
