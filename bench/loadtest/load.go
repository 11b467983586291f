// Package loadtest loads a shop with orders and measures the answers.
package loadtest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
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

// Traffic holds the responses to the requests of one load.
type Traffic struct {
	Lasting   time.Duration // requests were sent until then
	Responses []Response    // in no order
	// Only an open loop has these:
	Unsent int             // arrivals that found no free connection before the load ended
	Lag    []time.Duration // of each arrival that found a free connection: by how much the generator was late
}

// Response is the response to one request. Times count from the start of the load.
type Response struct {
	Status int           // 0: no response
	Due    time.Duration // when the request arrived by the schedule, or, in a closed loop, when it was sent
	Ended  time.Duration // when the response was read
}

// Rate returns how many responses that match came per second. It counts the responses that came before the load ended.
func (r Traffic) Rate(match func(status int) bool) float64 {
	n := 0
	for _, response := range r.Responses {
		if match(response.Status) && response.Ended <= r.Lasting {
			n++
		}
	}
	return float64(n) / r.Lasting.Seconds()
}

// Count returns the number of responses that match.
func (r Traffic) Count(match func(status int) bool) int { return len(r.Latencies(match)) }

// Latencies returns the time from the due time to the response, of each response that matches.
func (r Traffic) Latencies(match func(status int) bool) (took []time.Duration) {
	for _, response := range r.Responses {
		if match(response.Status) {
			took = append(took, response.Ended-response.Due)
		}
	}
	return took
}

// Is returns a function that matches one status.
func Is(want int) func(status int) bool { return func(status int) bool { return status == want } }

// Requester appends the bytes of the i-th request of a load to buf.
type Requester func(buf []byte, i int) []byte

// ClosedLoop keeps a number of clients busy. Each client sends its next request when it has the response to the one
// before.
func ClosedLoop(t testing.TB, addr string, clients int, lasting time.Duration, next Requester) Traffic {
	t.Helper()
	conns := newConns(addr, clients, lasting)
	for _, c := range conns {
		testenv.Must(t, c.connect())
	}
	r := Traffic{Lasting: lasting}
	var sent atomic.Int64
	began := time.Now()
	r.collect(conns, func(c *loadConn, part *Traffic) {
		for {
			due := time.Since(began)
			if due >= lasting {
				return
			}
			status := c.send(next, int(sent.Add(1)-1))
			part.Responses = append(part.Responses, Response{status, due, time.Since(began)})
			// While the service is away, do not spin.
			if status == 0 && !faulttest.Sleep(t.Context(), 10*time.Millisecond) {
				return
			}
		}
	})
	return r
}

// OpenLoop sends a request at each of the arrivals, which count from the start of the load and are sorted. A slow
// service does not delay the arrivals. An arrival that finds no free connection waits for one, and its latency includes
// that wait.
//
// Each connection waits for an arrival of its own and then sends the request. So no queue and no dispatcher is needed,
// and the arrivals are sent in order.
func OpenLoop(
	t testing.TB, addr string, connections int, arrivals []time.Duration, lasting time.Duration, next Requester,
) Traffic {
	t.Helper()
	conns := newConns(addr, connections, lasting)
	r := Traffic{Lasting: lasting}
	var taken atomic.Int64
	began := time.Now()
	r.collect(conns, func(c *loadConn, part *Traffic) {
		for {
			i := int(taken.Add(1) - 1)
			if i >= len(arrivals) {
				return
			}
			due, now := arrivals[i], time.Since(began)
			switch {
			case now >= lasting:
				part.Unsent++
				continue
			case now < due:
				if !faulttest.Sleep(t.Context(), due-now) {
					return
				}
				part.Lag = append(part.Lag, time.Since(began)-due)
			}
			status := c.send(next, i)
			part.Responses = append(part.Responses, Response{status, due, time.Since(began)})
		}
	})
	return r
}

// collect calls send for each connection in a goroutine of its own, closes the connections, and adds up the parts.
func (r *Traffic) collect(conns []*loadConn, send func(c *loadConn, part *Traffic)) {
	parts := make([]Traffic, len(conns))
	var all sync.WaitGroup
	for i, c := range conns {
		all.Go(func() {
			send(c, &parts[i])
			c.close()
		})
	}
	all.Wait()
	for _, part := range parts {
		r.Responses = append(r.Responses, part.Responses...)
		r.Lag = append(r.Lag, part.Lag...)
		r.Unsent += part.Unsent
	}
}

// Poisson returns random arrivals of independent customers at a mean rate per second. The same seed gives the same
// arrivals.
func Poisson(rate float64, lasting time.Duration, seed uint64) (arrivals []time.Duration) {
	rng := rand.New(rand.NewPCG(seed, 0))
	for at := 0.0; ; {
		at += rng.ExpFloat64() / rate
		if at >= lasting.Seconds() {
			return arrivals
		}
		arrivals = append(arrivals, time.Duration(at*float64(time.Second)))
	}
}

// Steady returns arrivals at equal intervals.
func Steady(rate int, lasting time.Duration) (arrivals []time.Duration) {
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
// but no longer than [faulttest.RequestTimeout].
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
func (c *loadConn) send(next Requester, i int) (status int) {
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
