package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/shop/internal/devstack"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

// haproxy is a HAProxy with the configuration of the containers in front of the APIs of a deployment.
type haproxy struct {
	d       *faulttest.Deployment
	url     string
	control string // the path of its control socket
	slots   int    // how many of the servers in its configuration have had an API
}

// maxAPIs is the number of servers in the configuration. An API that replaces another one gets a server of its own.
const maxAPIs = 10

// newHAProxy starts a HAProxy and adds all APIs. It ends with the test.
func newHAProxy(d *faulttest.Deployment) *haproxy {
	d.T.Helper()
	path, err := exec.LookPath("haproxy")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/haproxy")
	}
	if err != nil {
		testenv.Skip(d.T, "haproxy", "no haproxy in PATH or in /usr/sbin (Debian and Ubuntu: apt-get install haproxy)")
	}
	dir, err := os.MkdirTemp("", "haproxy") // the path of a socket must be short
	testenv.Must(d.T, err)
	d.Owner.Cleanup(func() { os.RemoveAll(dir) })
	b := &haproxy{d: d, control: filepath.Join(dir, "control")}
	file := filepath.Join(dir, "haproxy.cfg")
	testenv.Must(d.T, os.WriteFile(file, []byte(b.config()), 0o600))

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(d.T, err)
	defer listener.Close()
	inherited, err := listener.(*net.TCPListener).File()
	testenv.Must(d.T, err)
	defer inherited.Close()
	b.url = "http://" + listener.Addr().String()

	cmd := exec.Command(path, "-db", "-f", file)
	cmd.ExtraFiles = []*os.File{inherited} // the file descriptor 3
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	ended, err := devstack.StartChild(cmd)
	testenv.Must(d.T, err)
	d.Owner.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if d.T.Failed() {
			d.T.Logf("output of HAProxy:\n%s", &log)
		}
	})
	for _, api := range d.Running("api") {
		b.add(api)
	}
	return b
}

// config returns the configuration of the containers, with other addresses. Its servers get their addresses over the
// control socket: there is no service that tells the names of processes.
func (b *haproxy) config() string {
	b.d.T.Helper()
	text, err := os.ReadFile("../deploy/haproxy.cfg")
	testenv.Must(b.d.T, err)
	config := string(text)
	for old, changed := range map[string]string{
		"bind :8080":                           "bind fd@3",
		" resolvers containers init-addr none": "",
		"server-template api 10 api:8080":      fmt.Sprintf("server-template api %d 127.0.0.1:1 disabled", maxAPIs),
	} {
		if strings.Count(config, old) != 1 {
			b.d.T.Fatalf("deploy/haproxy.cfg has %q not once", old)
		}
		config = strings.Replace(config, old, changed, 1)
	}
	return "global\n    stats socket " + b.control + " level admin\n" + config
}

// command sends a command to the control socket, and returns the reply.
func (b *haproxy) command(text string) string {
	b.d.T.Helper()
	var conn net.Conn
	faulttest.Eventually(b.d.T, "HAProxy has its control socket", func() (connected bool) {
		var err error
		conn, err = net.Dial("unix", b.control)
		return err == nil
	})
	defer conn.Close()
	_, err := io.WriteString(conn, text+"\n")
	testenv.Must(b.d.T, err)
	reply, err := io.ReadAll(conn)
	testenv.Must(b.d.T, err)
	return string(reply)
}

// add adds an API, and waits until HAProxy has found it ready.
func (b *haproxy) add(api *faulttest.Member) {
	b.d.T.Helper()
	b.slots++
	if b.slots > maxAPIs {
		b.d.T.Fatalf("HAProxy has %d servers, and all were used", maxAPIs)
	}
	name := fmt.Sprintf("api/api%d", b.slots)
	host, port, err := net.SplitHostPort(faulttest.HostOf(b.d.T, api.URL))
	testenv.Must(b.d.T, err)
	for _, command := range []string{
		fmt.Sprintf("set server %s addr %s port %s", name, host, port), "set server " + name + " state ready",
	} {
		if reply := b.command(command); strings.Contains(reply, "rror") || strings.Contains(reply, "nvalid") {
			b.d.T.Fatalf("HAProxy replies to %q: %s", command, reply)
		}
	}
	faulttest.Eventually(b.d.T, "HAProxy has found an API ready", func() bool {
		for line := range strings.Lines(b.command("show stat")) {
			if fields := strings.Split(line, ","); len(fields) > 17 && fields[0]+"/"+fields[1] == name {
				return fields[17] == "UP"
			}
		}
		return false
	})
}

// TestRollingRestart replaces all processes behind HAProxy and under load: the APIs one after the other, then all
// others. A process is stopped when the next one is ready. No request may fail, and no order may time out late.
func TestRollingRestart(t *testing.T) {
	var b *haproxy
	faulttest.Faults(t, orders, faulttest.Fault{
		Name: "behind HAProxy", Rate: 100, Bound: faulttest.Bound{Late: 2 * time.Second, Answer: 3 * time.Second},
		Needs: faulttest.Needs{
			Processes: []string{"api", "api", "worker", "worker", "relay",
				"reconciler"}, Env: []string{faulttest.EnvDrain + "=5s"}, // the default
			Front: func(d *faulttest.Deployment) string {
				b = newHAProxy(d)
				return b.url
			},
		},
		Inject: func(d *faulttest.Deployment) {
			var others sync.WaitGroup
			for _, old := range d.Running("") {
				next := d.Start(old.Role)
				d.Remove(old)
				if old.Role == "api" {
					b.add(next)
					old.Interrupt()
				} else {
					others.Go(func() { old.Interrupt() })
				}
			}
			others.Wait()
		},
	})
}
