package devstack_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
)

// helperVariable makes the test binary run as a helper: a program that uses this package, for tests that need another
// process or another user. Its value is the helper's role.
const helperVariable = "DEVSTACK_TEST_HELPER"

func TestMain(m *testing.M) {
	switch role := os.Getenv(helperVariable); role {
	case "":
		testenv.Main(m)
	default:
		exit(reportMissing(runServer(role)))
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// missing begins the line that a helper prints on a machine without the helper's server.
const missing = "missing "

// reportMissing prints the line that begins with [missing] if err says that the machine lacks a server. It returns any
// other error.
func reportMissing(err error) error {
	for feature, missingErr := range missingErrors {
		if errors.Is(err, missingErr) {
			fmt.Println(missing + feature)
			return nil
		}
	}
	return err
}

// startServer starts a server in dir. The name is the name of the server's process: postgres or redis-server.
func startServer(ctx context.Context, name, dir string) (interface{ Stop() error }, error) {
	if name == "postgres" {
		return devstack.StartPostgres(ctx, dir, nil)
	}
	return devstack.StartRedis(ctx, dir)
}

// runServer runs a server until standard input ends. It prints "ready" when the server answers.
func runServer(name string) error {
	dir, err := devstack.TempDir()
	if err != nil {
		return err
	}
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	server, err := startServer(context.Background(), name, data)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, server.Stop(), os.RemoveAll(dir))
}

// helper is a process of this test binary that has a role.
type helper struct {
	*exec.Cmd
	stdin  io.Closer
	stdout *bufio.Reader
}

// startHelper starts a helper with a directory for its files. The helper is killed when the test ends. The function
// change, if any, changes the command before it starts.
func startHelper(t *testing.T, role, dir string, change func(*exec.Cmd)) helper {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe") // another user may not reach the binary's own path
	cmd.Env = append(os.Environ(), helperVariable+"="+role, "TMPDIR="+dir)
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = 10 * time.Second
	if change != nil {
		change(cmd)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	return helper{cmd, stdin, bufio.NewReader(stdout)}
}

// awaitReady waits until the helper is ready, and skips the test if the machine lacks the helper's server.
func (h helper) awaitReady(t *testing.T) {
	t.Helper()
	line, err := h.stdout.ReadString('\n')
	if feature, ok := strings.CutPrefix(strings.TrimSpace(line), missing); ok {
		testenv.Skip(t, feature, missingErrors[feature].Error())
	}
	if line != "ready\n" {
		t.Fatalf("the helper printed %q, want \"ready\"; error %v", line, err)
	}
}
