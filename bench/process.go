package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"example.com/shop/bench/contender"
)

// worker is the process of a contender, seen from the benchmark.
type worker struct {
	info     contender.Info
	cmd      *exec.Cmd
	requests *json.Encoder
	replies  *json.Decoder
	log      string // the path of its log
	addr     string // of the shop's REST interface
}

// startTimeout is how long a contender may take until it can cancel orders. One that keeps a million orders in memory
// reads them first.
const startTimeout = 3 * time.Minute

// instance says how the process of a contender differs from others. The zero value is for the only process.
type instance struct {
	name    string // if there are several
	program string // the path of the program; "": this one
	eager   bool   // serves requests also while it cannot cancel orders yet
}

// start starts the process of a contender, and waits until it can cancel orders, unless it is eager. The process ends
// when ctx ends.
func (s *servers) start(ctx context.Context, info contender.Info, p instance) (*worker, error) {
	cmd, err := s.command(ctx, info, p, false)
	if err != nil {
		return nil, err
	}
	w := &worker{info: info, cmd: cmd, log: filepath.Join(s.dir, "contender"+p.name+".log")}
	if err := w.launch(); err != nil {
		return nil, fmt.Errorf("start %s: %w", info.Name, err)
	}
	first, err := w.reply(startTimeout)
	if err != nil {
		return nil, errors.Join(err, w.kill())
	}
	w.addr = first.Addr
	return w, nil
}

// clean removes what earlier runs of a contender left in Redis and in its own store.
func (s *servers) clean(ctx context.Context, info contender.Info) error {
	if err := s.cleanRedis(ctx); err != nil {
		return err
	}
	cmd, err := s.command(ctx, info, instance{}, true)
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("clean up after earlier runs of %s: %w: %s", info.Name, err, out)
	}
	return nil
}

// command returns the command that runs a contender, or with clean only removes what earlier runs left.
func (s *servers) command(ctx context.Context, info contender.Info, p instance, clean bool) (*exec.Cmd, error) {
	options, err := json.Marshal(contendOptions{
		Name: info.Name, Process: cmp.Or(p.name, "1"), Eager: p.eager, Clean: clean,
		DatabaseURL: s.databaseURL, RedisURL: s.redisURL, RabbitURL: s.rabbitURL(),
	})
	if err != nil {
		return nil, err
	}
	if p.program == "" {
		if p.program, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	cmd := exec.CommandContext(ctx, p.program)
	cmd.Env = append(os.Environ(), contendVariable+"="+string(options))
	return cmd, nil
}

func (w *worker) launch() error {
	in, err := w.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	log, err := os.Create(w.log)
	if err != nil {
		return err
	}
	defer log.Close() // the process has a descriptor of its own
	w.cmd.Stderr = log
	w.requests, w.replies = json.NewEncoder(in), json.NewDecoder(out)
	return w.cmd.Start()
}

func (w *worker) pid() int32 { return int32(w.cmd.Process.Pid) }

// ask sends a request and returns the reply.
func (w *worker) ask(r request) (reply, error) {
	if err := w.requests.Encode(r); err != nil {
		return reply{}, fmt.Errorf("%s does not read: %w; its log ends with: %s", w.info.Name, err, w.logTail())
	}
	return w.reply(time.Minute)
}

// reply reads the next reply. It kills the process if there is none within the limit.
func (w *worker) reply(limit time.Duration) (r reply, err error) {
	timer := time.AfterFunc(limit, func() { _ = w.cmd.Process.Kill() })
	defer timer.Stop()
	if err := w.replies.Decode(&r); err != nil {
		return r, fmt.Errorf("%s gave no reply: %w; its log ends with: %s", w.info.Name, err, w.logTail())
	}
	if r.Error != "" {
		return r, fmt.Errorf("%s: %s", w.info.Name, r.Error)
	}
	return r, nil
}

const scheduleGroup = 1000 // orders that one request schedules

func (w *worker) schedule(orders []scheduled) error {
	for some := range slices.Chunk(orders, scheduleGroup) {
		if _, err := w.ask(request{Schedule: some}); err != nil {
			return err
		}
	}
	return nil
}

// place has the process begin to place orders.
func (w *worker) place(orders []scheduled) error {
	_, err := w.ask(request{Place: orders})
	return err
}

// have has the process have a fault once.
func (w *worker) have(f fault) error {
	_, err := w.ask(request{Fault: f})
	return err
}

// hang has the next delivery of the process take longer.
func (w *worker) hang(length time.Duration) error {
	_, err := w.ask(request{Fault: hang, Hang: length})
	return err
}

// awaitEnd waits until the process has ended by itself, and reports whether it has. After the limit it kills the
// process.
func (w *worker) awaitEnd(limit time.Duration) bool {
	timer := time.AfterFunc(limit, func() { _ = w.cmd.Process.Kill() })
	_ = w.cmd.Wait() // the error says that the process was killed
	return timer.Stop()
}

func (w *worker) counts() (counts, error) {
	r, err := w.ask(request{Counts: true})
	return r.Counts, err
}

// kill kills the process (SIGKILL).
func (w *worker) kill() error {
	err := w.cmd.Process.Kill()
	_ = w.cmd.Wait() // the error says that the process was killed
	return err
}

// logTail returns the end of the log on one line.
func (w *worker) logTail() string {
	text, err := os.ReadFile(w.log)
	if err != nil {
		return err.Error()
	}
	const most = 1000
	return strings.Join(strings.Fields(string(text[max(len(text)-most, 0):])), " ")
}
