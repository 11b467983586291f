package e2e

import (
	"fmt"
	"net"

	"example.com/shop/e2e/loadtest"
	"example.com/shop/internal/testenv"
)

// pageMemory returns the bytes of memory that the process needs for an open page.
func pageMemory(s *loadtest.Site) float64 {
	const pages = 2_000
	s.T.Helper()
	pid, token := s.Process.Cmd.Process.Pid, s.Process.SignUp().Token
	before := memoryOf(s.T, pid)
	for range pages {
		conn, err := net.Dial("tcp", s.Addr())
		testenv.Must(s.T, err)
		defer conn.Close()
		_, err = fmt.Fprintf(conn, "GET /api/events HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n", s.Addr(), token)
		testenv.Must(s.T, err)
		_, err = conn.Read(make([]byte, 1024))
		testenv.Must(s.T, err)
	}
	return (memoryOf(s.T, pid) - before) / pages
}
