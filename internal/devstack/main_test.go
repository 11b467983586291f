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
	"testing"
	"time"

	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
)

// helperVariable makes the test binary run as a helper: a program that uses this package, for tests that need another
// process. Its value is the name of the server's process.
const helperVariable = "DEVSTACK_TEST_HELPER"

func TestMain(m *testing.M) {
	server := os.Getenv(helperVariable)
	if server == "" {
		testenv.Main(m)
	}
	fmt.Fprintln(os.Stderr, runServer(server))
	os.Exit(1)
}

// startServer starts a server in dir. The name is the name of the server's process: postgres or redis-server.
func startServer(ctx context.Context, name, dir string) (interface{ Stop() error }, error) {
	if name == "postgres" {
		return devstack.StartPostgres(ctx, dir, nil)
	}
	return devstack.StartRedis(ctx, dir)
}

// runServer runs a server until this process is killed. It prints "ready" when the server answers.
func runServer(name string) error {
	dir, err := devstack.TempDir()
	if err != nil {
		return err
	}
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	if _, err := startServer(context.Background(), name, data); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// startHelper starts a helper with a directory for its files, and waits until its server answers.
func startHelper(t *testing.T, server, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), helperVariable+"="+server, "TMPDIR="+dir)
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = 10 * time.Second
	_, err := cmd.StdinPipe() // open until this process ends
	testenv.Must(t, err)
	stdout, err := cmd.StdoutPipe()
	testenv.Must(t, err)
	testenv.Must(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the helper printed %q, want \"ready\"; error %v", line, err)
	}
	return cmd
}
