// Package devstack runs a private PostgreSQL and a private Redis, for a demo and for tests. A server is a child process
// that runs the machine's own binaries. It listens on a free port of 127.0.0.1 and keeps its files in a temporary
// directory. [Miniredis] is a stand-in for Redis within the process. For a demo on a machine without PostgreSQL,
// [StartServers] runs it in a container.
//
// A server does not outlive its parent process, even if the parent is killed: Linux then sends the child process a
// signal that ends it, and a container ends because its standard input ends. The directory remains until the next call
// of [TempDir] removes it. On other systems a child process of a killed parent keeps running.
package devstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// startTimeout is the longest time for the start of a server. A start takes half a second on an idle machine, and much
// longer on a busy one.
const startTimeout = time.Minute

// stopTimeout is the time that a server has to stop before it is killed. A server that hangs delays its caller by all
// of it. It is longer than the five seconds after which PostgreSQL kills its own children, because those of a killed
// PostgreSQL go on writing files.
const stopTimeout = 20 * time.Second

// process is a child process.
type process struct {
	cmd     *exec.Cmd
	logPath string
	ended   <-chan struct{} // closed when the child has ended
}

// StartChild starts a command as a child process. Linux kills the child when this process ends, even if this process is
// killed. The channel is closed when the child has ended and its output was written.
func StartChild(cmd *exec.Cmd) (ended <-chan struct{}, err error) {
	cmd.SysProcAttr = childOf(syscall.SIGKILL)
	return startChild(cmd)
}

// startChild starts a command whose attributes are those of [childOf].
func startChild(cmd *exec.Cmd) (<-chan struct{}, error) {
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		// Linux sends the parent-death signal when the thread that forked the child ends. So this goroutine keeps its
		// thread until the child has ended. See PR_SET_PDEATHSIG in prctl(2).
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the child's output says why it ended
		}
		close(ended)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	return ended, nil
}

// start runs a command and writes its output to a log file.
func start(cmd *exec.Cmd, logPath string) (*process, error) {
	log, err := os.Create(logPath)
	if err != nil {
		return nil, fmt.Errorf("create the server's log: %w", err)
	}
	defer log.Close() // the child has a descriptor of its own
	cmd.Stdout, cmd.Stderr = log, log
	ended, err := startChild(cmd)
	if err != nil {
		return nil, err
	}
	return &process{cmd: cmd, logPath: logPath, ended: ended}, nil
}

// finish runs a command until it ends, and writes its output to a log file. When ctx ends, finish interrupts the
// command instead of killing it, because the children of a killed initdb would go on writing files.
func finish(ctx context.Context, cmd *exec.Cmd, logPath string) error {
	p, err := start(cmd, logPath)
	if err != nil {
		return err
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
		return errors.Join(ctx.Err(), p.stop(syscall.SIGINT))
	}
	if !cmd.ProcessState.Success() {
		return fmt.Errorf("%s: %s", filepath.Base(cmd.Path), p.logTail())
	}
	return nil
}

// stop sends the child a signal, and kills it if it does not end within stopTimeout.
func (p *process) stop(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the server: %w", err)
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(stopTimeout):
		return p.kill()
	}
}

// kill kills the child and waits until it has ended.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill the server: %w", err)
	}
	<-p.ended
	return nil
}

// await calls ready until it succeeds. If the child ends first, await returns an error with the end of the child's log.
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
			return fmt.Errorf("%s ended before it was ready: %s", filepath.Base(p.cmd.Path), p.logTail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %w: %s", filepath.Base(p.cmd.Path), ctx.Err(), err, p.logTail())
		case <-tick.C:
		}
	}
}

var errNotListening = errors.New("it does not listen on its port yet")

// listening matches the line with which a server's log says that it listens.
var listening = regexp.MustCompile(`(?i)ready to accept|sentinel id is|process up`)

// listens reports whether the child's log says that the child listens on its port. An answer on that port would prove
// nothing: it could come from another server that took the port first. A standby is "ready to accept read-only
// connections", a Sentinel that listens logs its id, and PgBouncer is a "process up".
func (p *process) listens() bool {
	log, err := os.ReadFile(p.logPath)
	return err == nil && listening.Match(log)
}

// logTail returns the end of the child's log on one line, or why the log cannot be read.
func (p *process) logTail() string {
	log, err := os.ReadFile(p.logPath)
	if err != nil {
		return err.Error()
	}
	log = bytes.TrimSpace(log)
	const maxTail = 600 // bytes: enough for the cause, in a line that is not too long to read
	if len(log) > maxTail {
		log = log[len(log)-maxTail:]
	}
	return strings.Join(strings.Fields(string(log)), " ")
}

// FreePort returns a port from 20000 to 31999 of 127.0.0.1 on which no process listens. Another process may take it
// before the caller does. The system never gives such a port to a connection, or to a listener that asks for any port:
// those ports are higher, on Linux 32768 and up, see ip(7). So the port stays free while a server is restarted.
func FreePort() (int, error) { return FreePortIn(20_000, 32_000) }

// FreePortIn is [FreePort] for the ports from first to end-1.
func FreePortIn(first, end int) (int, error) {
	var err error
	for range 100 {
		port := first + rand.N(end-first)
		var ln net.Listener
		if ln, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, ln.Close()
		}
	}
	return 0, fmt.Errorf("find a free port: %w", err)
}

// onFreePort calls start with a free port. If another process took the port first, it tries another port. It tries at
// most three ports.
func onFreePort[T any](start func(port int) (T, error)) (T, error) {
	var server T
	var err error
	for range 3 {
		port, portErr := FreePort()
		if portErr != nil {
			return server, portErr
		}
		if server, err = start(port); err == nil || !portIsTaken(err) {
			break
		}
	}
	return server, err
}

// portIsTaken reports whether err contains the message of a server or a container engine that the port is in use.
func portIsTaken(err error) bool {
	text := err.Error()
	return strings.Contains(text, "ddress already in use") || strings.Contains(text, "port is already allocated")
}
