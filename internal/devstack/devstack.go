// Package devstack runs a private PostgreSQL and a private Redis, for a demo and for tests: as child processes
// from the binaries of the machine, or in containers ([Engine]), on ports of their own, in a directory that is
// gone afterwards.
//
// A server does not outlive its parent. It stops when told to. If the parent dies in any other way, Linux ends a
// child process, and a container ends because its standard input does. Its directory stays then, until the next
// [TempDir].
package devstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// startTimeout is far more than a server needs: half a second on an idle machine.
const startTimeout = time.Minute

// stopTimeout is what a server gets to stop before it is killed.
const stopTimeout = 5 * time.Second

// process is a running child.
type process struct {
	cmd     *exec.Cmd
	logPath string
	ended   chan struct{} // closed once the child is gone
}

// start runs a command with its output in a log file.
func start(cmd *exec.Cmd, logPath string) (*process, error) {
	log, err := os.Create(logPath)
	if err != nil {
		return nil, fmt.Errorf("create server log: %w", err)
	}
	defer log.Close() // the child has its own descriptor
	cmd.Stdout, cmd.Stderr = log, log
	p := &process{cmd: cmd, logPath: logPath, ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel's parent-death signal follows the thread that forked, not the process: this
		// goroutine keeps its thread until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log
		}
		close(p.ended)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	return p, nil
}

// stop asks the child to end with a signal, and kills it if it does not.
func (p *process) stop(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop server: %w", err)
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(stopTimeout):
		return p.kill()
	}
}

func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill server: %w", err)
	}
	<-p.ended
	return nil
}

// await polls ready until it succeeds. A child that ends meanwhile is an error with the end of its log.
func (p *process) await(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := errNotListening
		if p.listens() {
			err = ready(ctx)
		}
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended at once: %s", filepath.Base(p.cmd.Path), p.logTail())
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w: %w: %s", filepath.Base(p.cmd.Path), ctx.Err(), err, p.logTail())
		case <-tick.C:
		}
	}
}

var errNotListening = errors.New("not listening yet")

// listens reads in the child's own log that it has its port. What answers there could be another server,
// which took the port first.
func (p *process) listens() bool {
	log, err := os.ReadFile(p.logPath)
	return err == nil && bytes.Contains(bytes.ToLower(log), []byte("ready to accept connections"))
}

// logTail is the end of the server's log, on one line.
func (p *process) logTail() string {
	log, err := os.ReadFile(p.logPath)
	if err != nil {
		return err.Error()
	}
	log = bytes.TrimSpace(log)
	const most = 600
	if len(log) > most {
		log = log[len(log)-most:]
	}
	return strings.Join(strings.Fields(string(log)), " ")
}

// freePort asks the kernel for a port. Someone may take it before the server does, so a start that
// fails is tried again with another.
func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}

// onFreePort calls start with a free port, again if the port was taken meanwhile.
func onFreePort[T any](start func(port int) (T, error)) (T, error) {
	var server T
	var err error
	for range 3 {
		port, portErr := freePort()
		if portErr != nil {
			return server, portErr
		}
		if server, err = start(port); err == nil || !portIsTaken(err) {
			break
		}
	}
	return server, err
}

// portIsTaken reports whether a server, or the engine of its container, says so in its log.
func portIsTaken(err error) bool {
	return strings.Contains(err.Error(), "ddress already in use") || strings.Contains(err.Error(), "port is already allocated")
}
