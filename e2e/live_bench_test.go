package e2e

import (
	"fmt"
	"net"

	"example.com/shop/internal/testenv"
)

// pageMemory returns the bytes of memory that the process needs for an open page.
func pageMemory(s *benchSite) float64 {
	const pages = 2_000
	s.b.Helper()
	pid, token := s.process.Cmd.Process.Pid, s.process.SignUp().Token
	before := memoryOf(s.b, pid)
	for range pages {
		conn, err := net.Dial("tcp", s.addr())
		testenv.Must(s.b, err)
		defer conn.Close()
		_, err = fmt.Fprintf(conn, "GET /api/events HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n", s.addr(), token)
		testenv.Must(s.b, err)
		_, err = conn.Read(make([]byte, 1024))
		testenv.Must(s.b, err)
	}
	return (memoryOf(s.b, pid) - before) / pages
}
