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

// helperVariable has the test binary play a program that uses this package, for tests that need another
// process, or another user.
const helperVariable = "DEVSTACK_TEST_HELPER"

func TestMain(m *testing.M) {
	switch role := os.Getenv(helperVariable); role {
	case "":
		testenv.Main(m)
	case "no postgres":
		exit(startHiddenPostgres())
	case "no server":
		exit(holdTempDir())
	default:
		exit(sayMissing(runServer(role)))
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// missing begins what a helper says on a machine that cannot run its servers.
const missing = "missing "

func sayMissing(err error) error {
	for feature, sentinel := range lacks {
		if errors.Is(err, sentinel) {
			fmt.Println(missing + feature)
			return nil
		}
	}
	return err
}

// startServer starts a server, named as its process is, in dir.
func startServer(ctx context.Context, name, dir string) (interface{ Stop() error }, error) {
	if name == "postgres" {
		return devstack.StartPostgres(ctx, dir, nil)
	}
	return devstack.StartRedis(ctx, dir)
}

// runServer runs a server until standard input ends, and says when it is ready.
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

// holdTempDir has a directory for servers, and none in it, until standard input ends.
func holdTempDir() error {
	dir, err := devstack.TempDir()
	if err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, os.RemoveAll(dir))
}

// helper is another process of this binary.
type helper struct {
	*exec.Cmd
	stdin  io.Closer
	stdout *bufio.Reader
}

// startHelper runs the test binary in a role, with a directory for its files. It is killed if the test
// leaves it.
func startHelper(t *testing.T, role, dir string, change func(*exec.Cmd)) helper {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe") // another user may not reach its real path
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

// awaitReady waits until the helper's server runs.
func (h helper) awaitReady(t *testing.T) {
	t.Helper()
	said, err := h.stdout.ReadString('\n')
	if feature, ok := strings.CutPrefix(strings.TrimSpace(said), missing); ok {
		testenv.Skip(t, feature, lacks[feature].Error())
	}
	if said != "ready\n" {
		t.Fatalf("the helper said %q, then %v", said, err)
	}
}
