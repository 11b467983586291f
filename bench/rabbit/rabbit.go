// Package rabbit runs a private RabbitMQ for the benchmark. The server listens on free ports of 127.0.0.1 and keeps its
// files in one directory. On Linux it does not outlive its parent process, even if the parent is killed.
package rabbit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ErrMissing means that the machine does not have RabbitMQ.
var ErrMissing = errors.New("no rabbitmq-server in PATH or /usr/lib/rabbitmq: install it " +
	"(Debian and Ubuntu: apt-get install rabbitmq-server)")

// errPortTaken means that the server did not start because another process uses one of its ports.
var errPortTaken = errors.New("a port is taken")

// startTimeout limits how long a server may take to start. On an idle machine it takes five seconds.
const startTimeout = 3 * time.Minute

// Server is a private RabbitMQ with its defaults and without plugins. The methods must not be called concurrently.
type Server struct {
	script string // rabbitmq-server
	dir    string
	port   int // of AMQP
	dist   int // of the Erlang distribution
	names  int // of epmd

	epmd   *process // the name service of Erlang, without which the server does not start
	broker *process // the Erlang VM
}

// Start runs a server that keeps its files in dir, an existing directory, and waits until it accepts connections. If
// another process takes one of the server's ports first, Start tries other ports. If the machine has no RabbitMQ, the
// error is [ErrMissing].
func Start(ctx context.Context, dir string) (*Server, error) {
	script, err := findScript()
	if err != nil {
		return nil, err
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find the directory for RabbitMQ: %w", err)
	}
	var s *Server
	err = whilePortTaken(func() error {
		ports, err := freePorts()
		if err != nil {
			return err
		}
		s, err = startOn(ctx, script, dir, ports)
		return err
	})
	return s, err
}

// startOn starts a server that listens on the ports.
func startOn(ctx context.Context, script, dir string, ports [3]int) (*Server, error) {
	s := &Server{script: script, dir: dir, port: ports[0], dist: ports[1], names: ports[2]}
	epmd := exec.Command("epmd", "-address", "127.0.0.1", "-port", strconv.Itoa(s.names))
	var err error
	if s.epmd, err = start(epmd, filepath.Join(dir, "epmd.log")); err != nil {
		return nil, err
	}
	if err := s.startBroker(ctx); err != nil {
		return nil, errors.Join(err, s.epmd.kill())
	}
	return s, nil
}

// findScript returns the path of rabbitmq-server. Debian's command in PATH is a wrapper that refuses to run for most
// users, so the script itself comes first.
func findScript() (string, error) {
	const debian = "/usr/lib/rabbitmq/bin/rabbitmq-server"
	if _, err := os.Stat(debian); err == nil {
		return debian, nil
	}
	path, err := exec.LookPath("rabbitmq-server")
	if err != nil {
		return "", ErrMissing
	}
	return path, nil
}

// URL returns the address of the server.
func (s *Server) URL() string { return fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", s.port) }

// Pid returns the process id of the Erlang VM, which uses the server's memory and CPU time.
func (s *Server) Pid() int { return s.broker.cmd.Process.Pid }

// Stop kills the server. It does not wait for a clean shutdown, because nobody reads the data again. A second call has
// no effect.
func (s *Server) Stop() error { return errors.Join(s.broker.kill(), s.epmd.kill()) }

// Kill kills the server (SIGKILL), which keeps its data.
func (s *Server) Kill() error { return s.broker.kill() }

// Restart starts the server again after [Server.Kill] with the same address. If another process uses one of the
// server's ports for a short time, as a client's connection does, Restart starts the server once more.
func (s *Server) Restart(ctx context.Context) error {
	return whilePortTaken(func() error { return s.startBroker(ctx) })
}

// Wipe kills the server (SIGKILL), deletes its data and starts it again with the same address.
func (s *Server) Wipe(ctx context.Context) error {
	if err := s.Kill(); err != nil {
		return err
	}
	if err := os.RemoveAll(s.data()); err != nil {
		return fmt.Errorf("delete the data of RabbitMQ: %w", err)
	}
	return s.Restart(ctx)
}

// Version returns the version that the server reports, or "unknown" if the server does not answer.
func (s *Server) Version(ctx context.Context) string {
	conn, err := amqp.DialConfig(s.URL(), amqp.Config{
		Dial: func(network, addr string) (net.Conn, error) {
			return (&net.Dialer{Timeout: time.Second}).DialContext(ctx, network, addr)
		},
	})
	if err != nil {
		return "unknown"
	}
	defer func() { _ = conn.Close() }()
	version, _ := conn.Properties["version"].(string)
	return cmp.Or(version, "unknown")
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// startBroker runs the Erlang VM and waits until RabbitMQ is ready.
func (s *Server) startBroker(ctx context.Context) error {
	cmd := exec.Command(s.script)
	cmd.Dir = s.dir
	cmd.Env = s.environment()
	broker, err := start(cmd, filepath.Join(s.dir, "rabbitmq.log"))
	if err != nil {
		return err
	}
	s.broker = broker
	err = broker.await(ctx, "Server startup complete")
	if err == nil {
		return nil
	}
	if s.portTaken() {
		err = fmt.Errorf("%w: %w", errPortTaken, err)
	}
	return errors.Join(err, broker.kill())
}

// portTaken reports whether the server did not start because another process uses one of its ports.
func (s *Server) portTaken() bool {
	if s.epmd.hasEnded() { // epmd ends by itself only if it cannot listen
		return true
	}
	log, err := os.ReadFile(s.broker.logPath)
	return err == nil &&
		(bytes.Contains(log, []byte("eaddrinuse")) || bytes.Contains(log, []byte("dist_port_already_used")))
}

// environment returns the server's whole environment, so that neither the machine's configuration nor RABBITMQ_
// variables of the parent change the server.
func (s *Server) environment() []string {
	file := func(name string) string { return filepath.Join(s.dir, name) }
	return []string{
		"PATH=" + os.Getenv("PATH"),
		"LC_ALL=C.UTF-8",
		"HOME=" + s.dir, // Erlang keeps its cookie there
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"ERL_EPMD_PORT=" + strconv.Itoa(s.names),
		"ERL_CRASH_DUMP_SECONDS=0",
		// The script then replaces itself by the Erlang VM. So the child process is the VM.
		"RUNNING_UNDER_SYSTEMD=true",
		"RABBITMQ_NODENAME=bench@localhost",
		"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		"RABBITMQ_NODE_PORT=" + strconv.Itoa(s.port),
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(s.dist),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
		"RABBITMQ_MNESIA_BASE=" + s.data(),
		"RABBITMQ_LOG_BASE=" + file("log"),
		"RABBITMQ_LOGS=-", // to standard output
		"RABBITMQ_PID_FILE=" + file("pid"),
		// These files do not exist, so the server runs with its defaults and without plugins.
		"RABBITMQ_CONF_ENV_FILE=" + file("none-env.conf"),
		"RABBITMQ_CONFIG_FILE=" + file("none"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + file("none-advanced.config"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + file("enabled_plugins"),
	}
}

// process is a child process.
type process struct {
	cmd     *exec.Cmd
	logPath string
	ended   chan struct{} // closed when the child has ended
}

// start runs a command and writes its output to a log file.
func start(cmd *exec.Cmd, logPath string) (*process, error) {
	log, err := os.Create(logPath)
	if err != nil {
		return nil, fmt.Errorf("create the log of %s: %w", filepath.Base(cmd.Path), err)
	}
	defer log.Close() // the child has a descriptor of its own
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = killedWithParent()
	p := &process{cmd: cmd, logPath: logPath, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Linux sends the parent-death signal when the thread that forked the child ends. So this goroutine keeps its
		// thread until the child has ended. See PR_SET_PDEATHSIG in prctl(2).
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the child's log says why it ended
		}
		close(p.ended)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	return p, nil
}

// hasEnded reports whether the child has ended.
func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// kill kills the child and waits until it has ended.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", filepath.Base(p.cmd.Path), err)
	}
	<-p.ended
	return nil
}

// await waits until the child's log contains the text. If the child ends first, await returns an error with the end of
// the log.
func (p *process) await(ctx context.Context, text string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		log, err := os.ReadFile(p.logPath)
		if err != nil {
			return fmt.Errorf("read the log of %s: %w", filepath.Base(p.cmd.Path), err)
		}
		if bytes.Contains(log, []byte(text)) {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended before it was ready: %s", filepath.Base(p.cmd.Path), tail(log))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %s", filepath.Base(p.cmd.Path), ctx.Err(), tail(log))
		case <-tick.C:
		}
	}
}

// tail returns the end of a log on one line.
func tail(log []byte) string {
	const most = 600
	return strings.Join(strings.Fields(string(log[max(0, len(log)-most):])), " ")
}

// whilePortTaken calls start until its error is not [errPortTaken]. It calls start at most three times.
func whilePortTaken(start func() error) (err error) {
	for range 3 {
		if err = start(); !errors.Is(err, errPortTaken) {
			break
		}
	}
	return err
}

// freePorts returns three free ports of 127.0.0.1. Another process may take one before the server does. See
// [whilePortTaken].
func freePorts() (ports [3]int, err error) {
	for i := range ports {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return ports, fmt.Errorf("find a free port: %w", err)
		}
		defer ln.Close() // only at the end, so that the ports differ
		ports[i] = ln.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}
