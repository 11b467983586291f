package faulttest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"example.com/shop/internal/testenv"
)

// This file has what the tests know about processes and addresses of the machine.

// ChildrenOf returns the ids of a process's children.
func ChildrenOf(t testing.TB, parent int) (children []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	testenv.Must(t, err)
	for _, path := range stats {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		testenv.Must(t, err)
		if fields := StatOf(pid); len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			children = append(children, pid)
		}
	}
	return children
}

// StatOf returns the fields of /proc/PID/stat from the state on; the second field is the parent's id. It returns nil if
// the process has ended.
func StatOf(pid int) []string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.Fields(rest)
}
