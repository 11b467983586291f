package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

// The load generator of the benchmarks shares the processors with the service that it measures. So it does not use
// net/http: it sends prepared bytes, and reads no more of a response than the status and the length.

// traffic holds the responses to the requests of one load.
type traffic struct {
	lasting   time.Duration // requests were sent until then
	responses []response    // in no order
	// Only an open loop has these:
	unsent int             // arrivals that found no free connection before the load ended
	lag    []time.Duration // of each arrival that found a free connection: by how much the generator was late
}

// response is the response to one request. Times count from the start of the load.
type response struct {
	status int           // 0: no response
	due    time.Duration // when the request arrived by the schedule, or, in a closed loop, when it was sent
	ended  time.Duration // when the response was read
}

// rate returns how many responses that match came per second. It counts the responses that came before the load ended.
func (r traffic) rate(match func(status int) bool) float64 {
	n := 0
	for _, response := range r.responses {
		if match(response.status) && response.ended <= r.lasting {
			n++
		}
	}
	return float64(n) / r.lasting.Seconds()
}

// count returns the number of responses that match.
func (r traffic) count(match func(status int) bool) int { return len(r.latencies(match)) }

// latencies returns the time from the due time to the response, of each response that matches.
func (r traffic) latencies(match func(status int) bool) (took []time.Duration) {
	for _, response := range r.responses {
		if match(response.status) {
			took = append(took, response.ended-response.due)
		}
	}
	return took
}

// is returns a function that matches one status.
func is(want int) func(status int) bool { return func(status int) bool { return status == want } }

// requester appends the bytes of the i-th request of a load to buf.
type requester func(buf []byte, i int) []byte

// closedLoop keeps a number of clients busy. Each client sends its next request when it has the response to the one
// before.
func closedLoop(t testing.TB, addr string, clients int, lasting time.Duration, next requester) traffic {
	t.Helper()
	conns := newConns(addr, clients, lasting)
	for _, c := range conns {
		testenv.Must(t, c.connect())
	}
	r := traffic{lasting: lasting}
	var sent atomic.Int64
	began := time.Now()
	r.collect(conns, func(c *loadConn, part *traffic) {
		for {
			due := time.Since(began)
			if due >= lasting {
				return
			}
			status := c.send(next, int(sent.Add(1)-1))
			part.responses = append(part.responses, response{status, due, time.Since(began)})
			if status == 0 && !faulttest.Sleep(t.Context(), 10*time.Millisecond) { // do not spin while the service is away
				return
			}
		}
	})
	return r
}

// openLoop sends a request at each of the arrivals, which count from the start of the load and are sorted. A slow
// service does not delay the arrivals. An arrival that finds no free connection waits for one, and its latency includes
// that wait.
//
// Each connection waits for an arrival of its own and then sends the request. So no queue and no dispatcher is needed,
// and the arrivals are sent in order.
func openLoop(t testing.TB, addr string, connections int, arrivals []time.Duration, lasting time.Duration, next requester) traffic {
	t.Helper()
	conns := newConns(addr, connections, lasting)
	r := traffic{lasting: lasting}
	var taken atomic.Int64
	began := time.Now()
	r.collect(conns, func(c *loadConn, part *traffic) {
		for {
			i := int(taken.Add(1) - 1)
			if i >= len(arrivals) {
				return
			}
			due, now := arrivals[i], time.Since(began)
			switch {
			case now >= lasting:
				part.unsent++
				continue
			case now < due:
				if !faulttest.Sleep(t.Context(), due-now) {
					return
				}
				part.lag = append(part.lag, time.Since(began)-due)
			}
			status := c.send(next, i)
			part.responses = append(part.responses, response{status, due, time.Since(began)})
		}
	})
	return r
}

// collect calls send for each connection in a goroutine of its own, closes the connections, and adds up the parts.
func (r *traffic) collect(conns []*loadConn, send func(c *loadConn, part *traffic)) {
	parts := make([]traffic, len(conns))
	var all sync.WaitGroup
	for i, c := range conns {
		all.Go(func() {
			send(c, &parts[i])
			c.close()
		})
	}
	all.Wait()
	for _, part := range parts {
		r.responses = append(r.responses, part.responses...)
		r.lag = append(r.lag, part.lag...)
		r.unsent += part.unsent
	}
}

// poisson returns random arrivals of independent customers at a mean rate per second. The same seed gives the same
// arrivals.
func poisson(rate float64, lasting time.Duration, seed uint64) (arrivals []time.Duration) {
	rng := rand.New(rand.NewPCG(seed, 0))
	for at := 0.0; ; {
		at += rng.ExpFloat64() / rate
		if at >= lasting.Seconds() {
			return arrivals
		}
		arrivals = append(arrivals, time.Duration(at*float64(time.Second)))
	}
}

// steady returns arrivals at equal intervals.
func steady(rate int, lasting time.Duration) (arrivals []time.Duration) {
	interval := time.Second / time.Duration(rate)
	for at := interval; at < lasting; at += interval {
		arrivals = append(arrivals, at)
	}
	return arrivals
}

// loadConn is a connection of the load generator. It connects again after the service has closed it.
type loadConn struct {
	addr  string
	limit time.Time // when to stop waiting for a response
	conn  net.Conn  // nil: not connected
	out   []byte
	in    []byte
}

// newConns returns n connections for a load. Each connects when it sends its first request, because the service closes
// new connections on which no request comes. When the load ends, requests that are under way wait for their responses,
// but no longer than requestTimeout.
func newConns(addr string, n int, lasting time.Duration) (conns []*loadConn) {
	limit := time.Now().Add(lasting + faulttest.RequestTimeout)
	for range n {
		conns = append(conns, &loadConn{addr: addr, limit: limit, in: make([]byte, 4<<10)})
	}
	return conns
}

func (c *loadConn) connect() (err error) {
	if c.conn, err = net.DialTimeout("tcp", c.addr, time.Second); err != nil {
		c.conn = nil // not an interface with a nil pointer
		return err
	}
	return c.conn.SetDeadline(c.limit)
}

func (c *loadConn) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// send sends the i-th request of a load and returns the status of the response, or 0 if no response comes. It sends a
// request only once: after a lost connection it is unknown whether the service has executed the request.
func (c *loadConn) send(next requester, i int) (status int) {
	if c.conn == nil && c.connect() != nil {
		return 0
	}
	c.out = next(c.out[:0], i)
	status, keep, err := c.exchange()
	if err != nil || !keep {
		c.close()
	}
	if err != nil {
		return 0
	}
	return status
}

// exchange writes the request in c.out, and reads the response. It discards the body. It reports whether the service
// keeps the connection.
func (c *loadConn) exchange() (status int, keep bool, err error) {
	if _, err := c.conn.Write(c.out); err != nil {
		return 0, false, err
	}
	have, end := 0, -1
	for end < 0 {
		if have == len(c.in) {
			return 0, false, fmt.Errorf("the header of the response is longer than %d bytes", len(c.in))
		}
		n, err := c.conn.Read(c.in[have:])
		if err != nil {
			return 0, false, err
		}
		have += n
		end = bytes.Index(c.in[:have], []byte("\r\n\r\n"))
	}
	header := c.in[:end+2]
	status, length, keep, err := parseHeader(header)
	if err != nil {
		return 0, false, err
	}
	for body := have - (end + 4); body < length; {
		n, err := c.conn.Read(c.in)
		if err != nil {
			return 0, false, err
		}
		body += n
	}
	return status, keep, nil
}

// parseHeader returns the status, the length of the body, and whether the service keeps the connection. It expects
// header names as net/http writes them, and a Content-Length.
func parseHeader(header []byte) (status, length int, keep bool, err error) {
	if !bytes.HasPrefix(header, []byte("HTTP/1.1 ")) || len(header) < len("HTTP/1.1 200") {
		return 0, 0, false, fmt.Errorf("expected a response of HTTP/1.1, found %q", header)
	}
	if status, err = strconv.Atoi(string(header[9:12])); err != nil {
		return 0, 0, false, err
	}
	_, rest, found := bytes.Cut(header, []byte("\r\nContent-Length: "))
	if !found {
		return 0, 0, false, errors.New("the response has no Content-Length")
	}
	value, _, _ := bytes.Cut(rest, []byte("\r\n"))
	if length, err = strconv.Atoi(string(value)); err != nil {
		return 0, 0, false, err
	}
	return status, length, !bytes.Contains(header, []byte("\r\nConnection: close\r\n")), nil
}

// TestOpenLoopCountsWait checks that the latency of an arrival includes the time that it waits for a connection, and
// that arrivals without a connection until the load ends are counted.
func TestOpenLoopCountsWait(t *testing.T) {
	t.Parallel()
	const response, interval = 50 * time.Millisecond, 10 * time.Millisecond
	addr := serveLoad(t, func(w http.ResponseWriter, r *http.Request) {
		faulttest.Sleep(r.Context(), response)
		w.WriteHeader(http.StatusCreated)
	})
	var arrivals []time.Duration
	for i := range 100 {
		arrivals = append(arrivals, time.Duration(i)*interval)
	}
	r := openLoop(t, addr, 1, arrivals, 500*time.Millisecond, emptyPost)
	took := r.latencies(is(http.StatusCreated))
	if len(took) == 0 || len(took)+r.unsent != len(arrivals) {
		t.Fatalf("%d responses and %d arrivals that were not sent, want %d in total", len(took), r.unsent, len(arrivals))
	}
	for i, latency := range took { // one connection: the responses are in order
		if least := time.Duration(i+1)*response - arrivals[i]; latency < least {
			t.Errorf("the latency of arrival %d is %v, want at least %v", i, latency, least)
		}
	}
}

// TestClosedLoopStatuses checks that a load counts each status, reads bodies to their end, and connects again after the
// service has closed a connection with or without a response.
func TestClosedLoopStatuses(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	addr := serveLoad(t, func(w http.ResponseWriter, _ *http.Request) {
		switch requests.Add(1) % 4 {
		case 0:
			w.WriteHeader(http.StatusCreated)
		case 1:
			body := bytes.Repeat([]byte("HTTP/1.1 500 \r\n\r\n"), 1000)
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			_, _ = w.Write(body)
		case 2:
			w.Header().Set("Connection", "close")
			w.WriteHeader(http.StatusServiceUnavailable)
		case 3:
			panic(http.ErrAbortHandler)
		}
	})
	r := closedLoop(t, addr, 1, time.Second, emptyPost)
	total := 0
	for _, status := range []int{http.StatusCreated, http.StatusOK, http.StatusServiceUnavailable, 0} {
		n := r.count(is(status))
		if n < len(r.responses)/4 {
			t.Errorf("%d responses with status %d, want a quarter of %d", n, status, len(r.responses))
		}
		total += n
	}
	if total != len(r.responses) || total != int(requests.Load()) || total < 4 {
		t.Errorf("%d requests and %d responses, %d of them with an expected status", requests.Load(), len(r.responses), total)
	}
}

// serveLoad serves a handler, and returns its address.
func serveLoad(t *testing.T, handler http.HandlerFunc) (addr string) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func emptyPost(buf []byte, _ int) []byte {
	return append(buf, "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n"...)
}
