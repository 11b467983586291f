package faulttest

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

// Proxy simulates the network between the service and one of its servers. The network is good, slow, cut or half-open.
type Proxy struct {
	ln net.Listener

	mu       sync.Mutex
	target   string
	delay    time.Duration // of each piece of data, in both directions
	cut      bool          // new connections are reset
	halfOpen bool          // new connections are accepted, but reach no server
	cutAt    func(answer []byte) bool
	links    map[*link]bool
	done     sync.WaitGroup
}

// link is one connection through the proxy.
type link struct {
	client, server net.Conn
	dead           bool // the link is half-open: all data is dropped, and both sides stay open
}

// NewProxy starts a proxy in front of the server at an address. It ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	p := &Proxy{ln: ln, target: target, links: map[*link]bool{}}
	p.done.Go(p.accept)
	t.Cleanup(func() {
		ln.Close()
		p.Cut()
		p.done.Wait()
	})
	return p
}

// Addr returns the address on which the proxy listens.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Slow delays all data.
func (p *Proxy) Slow(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
}

// Cut resets all connections and, until Heal, new ones.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for l := range p.links {
		l.reset()
	}
}

// CutAt resets the first connection over which the server sends an answer for which at returns true, and does not pass
// the answer on.
func (p *Proxy) CutAt(at func(answer []byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutAt = at
}

// HalfOpen drops the data of all connections and, until Heal, of new ones, while both sides stay open. The connections
// that exist now stay dead after Heal, as if a firewall had forgotten them.
func (p *Proxy) HalfOpen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.halfOpen = true
	for l := range p.links {
		l.dead = true
	}
}

// Heal ends the fault for new connections. It closes the server's side of half-open connections, as a reset in response
// to a keepalive would. The client's side stays open, because no keepalive passes the proxy.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if l.dead && l.server != nil {
			l.server.Close()
		}
	}
	p.delay, p.cut, p.halfOpen = 0, false, false
}

// Redirect connects new connections to another server and resets the existing ones.
func (p *Proxy) Redirect(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
	for l := range p.links {
		l.reset()
	}
}

func (p *Proxy) accept() {
	for {
		conn, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.done.Go(func() { p.serve(conn) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	l := p.connect(client)
	if l == nil {
		return
	}
	var pumps sync.WaitGroup
	if l.server != nil {
		pumps.Go(func() { p.pump(l, l.client, l.server) })
	}
	pumps.Go(func() { p.pump(l, l.server, l.client) })
	pumps.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// connect makes the link of a new connection, or resets the connection and returns nil. A half-open link has no server.
func (p *Proxy) connect(client net.Conn) *link {
	p.mu.Lock()
	target, reset, halfOpen := p.target, p.cut, p.halfOpen
	p.mu.Unlock()
	l := &link{client: client, dead: halfOpen}
	if !halfOpen && !reset {
		var err error
		l.server, err = net.DialTimeout("tcp", target, 5*time.Second)
		reset = err != nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if reset || p.cut {
		l.reset()
		return nil
	}
	l.dead = l.dead || p.halfOpen
	p.links[l] = true
	return l
}

// pump copies data from one side to the other, until either closes the connection.
func (p *Proxy) pump(l *link, to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		delay, dead := p.delay, l.dead
		if p.cutAt != nil && from == l.server && p.cutAt(buf[:n]) {
			p.cutAt = nil
			l.reset()
		}
		p.mu.Unlock()
		if dead {
			// If this side closes the connection, the other side stays open.
			if err != nil {
				from.Close()
				return
			}
			continue
		}
		<-time.After(delay)
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				err = werr
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				l.reset()
			}
			l.close()
			return
		}
	}
}

func (l *link) close() {
	l.client.Close()
	if l.server != nil {
		l.server.Close()
	}
}

// reset closes both sides with RST, so that unsent data is lost.
func (l *link) reset() {
	for _, conn := range []net.Conn{l.client, l.server} {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
	}
	l.close()
}
