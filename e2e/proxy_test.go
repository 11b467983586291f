package e2e

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// proxy is the network between the service and one of its servers: good, slow, cut or half-open.
type proxy struct {
	ln net.Listener

	mu     sync.Mutex
	target string
	delay  time.Duration // of each piece of data, either way
	cut    bool          // who connects is hung up on
	open   bool          // half-open: who connects is never answered
	links  map[*link]bool
	done   sync.WaitGroup
}

// link is one connection through the proxy.
type link struct {
	client, server net.Conn
	dead           bool // half-open: what either side sends is swallowed, and neither side is told
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &proxy{ln: ln, target: target, links: map[*link]bool{}}
	p.done.Go(p.accept)
	t.Cleanup(func() {
		ln.Close()
		p.Cut()
		p.done.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.ln.Addr().String() }

// Slow delays everything.
func (p *proxy) Slow(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
}

// Cut resets all connections, and whatever is connected from now on.
func (p *proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for l := range p.links {
		l.reset()
	}
}

// HalfOpen swallows what is sent over all connections, those of now and those to come, and tells no one.
// The connections of now are never heard of again: a firewall that has forgotten them.
func (p *proxy) HalfOpen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = true
	for l := range p.links {
		l.dead = true
	}
}

// Heal lets new connections through. Of those that were half-open the server learns that they are gone, as by a
// keepalive that is answered with a reset; the client, who has no keepalives through a proxy, does not.
func (p *proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if l.dead && l.server != nil {
			l.server.Close()
		}
	}
	p.delay, p.cut, p.open = 0, false, false
}

// Redirect sends new connections to another server and resets those there are.
func (p *proxy) Redirect(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
	for l := range p.links {
		l.reset()
	}
}

func (p *proxy) accept() {
	for {
		conn, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.done.Go(func() { p.serve(conn) })
	}
}

func (p *proxy) serve(client net.Conn) {
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

// connect makes the link of a new connection, nil if it is refused. A half-open one has no server.
func (p *proxy) connect(client net.Conn) *link {
	p.mu.Lock()
	target, refuse, open := p.target, p.cut, p.open
	p.mu.Unlock()
	l := &link{client: client, dead: open}
	if !open && !refuse {
		var err error
		l.server, err = net.DialTimeout("tcp", target, 5*time.Second)
		refuse = err != nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if refuse || p.cut {
		l.reset()
		return nil
	}
	l.dead = l.dead || p.open
	p.links[l] = true
	return l
}

// pump copies what one side says to the other, until either hangs up.
func (p *proxy) pump(l *link, to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		delay, dead := p.delay, l.dead
		p.mu.Unlock()
		if dead {
			// Its end is not passed on either: the other side is not told.
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
			if err != io.EOF {
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

// reset closes both sides at once, with RST: what is under way is lost.
func (l *link) reset() {
	for _, conn := range []net.Conn{l.client, l.server} {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
	}
	l.close()
}
