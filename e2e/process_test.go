package e2e

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"example.com/shop/internal/testenv"
)

// This file has what the tests know about processes and addresses of the machine.

// childrenOf returns the ids of a process's children.
func childrenOf(t testing.TB, parent int) (children []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	testenv.Must(t, err)
	for _, path := range stats {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		testenv.Must(t, err)
		if fields := statOf(pid); len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			children = append(children, pid)
		}
	}
	return children
}

// statOf returns the fields of /proc/PID/stat from the state on; the second field is the parent's id. It returns nil if
// the process has ended.
func statOf(pid int) []string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.Fields(rest)
}

// nameOf returns the name of a process's program, or "" if the process has ended.
func nameOf(pid int) string {
	name, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return strings.TrimSpace(string(name))
}

// alive reports whether a process runs. A zombie has ended, but its parent has not read its status yet.
func alive(pid int) bool {
	fields := statOf(pid)
	return fields != nil && fields[0] != "Z"
}

// freeAddress returns an address on which no process listens, for a process that is started there more than once. The port
// is below those that the system gives to connections and to listeners on any free port (from 32768 on, see ip(7)), so the
// address stays free.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		free, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.N(20_000)))
		if err == nil {
			defer free.Close()
			return free.Addr().String()
		}
	}
	t.Fatal("none of 100 ports is free")
	return ""
}
