// Command shop takes orders that must be paid by a deadline. It cancels an order that is not paid in time, and releases
// its stock.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// gcPercent makes Go's garbage collector run less often than by default, unless the variable GOGC is set. The service
// has little memory in use and makes much garbage, so it would run many times a second. In a load test it took a sixth of
// the processor time, and now the process needs some 20 MB more.
const gcPercent = 400

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second Ctrl-C ends the process at once
	os.Exit(exitCode(run(ctx, os.Args[1:], os.Stdout, os.Stderr), os.Stderr))
}

// run parses the command line and the SHOP_ variables of the environment, and runs one command until the command is
// done or ctx ends.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	parser, err := newParser(stdout, stderr)
	if err != nil {
		return err
	}
	command, err := parse(parser, args)
	if err != nil {
		return usageError{err}
	}
	command.BindTo(ctx, (*context.Context)(nil))
	command.Bind(streams{out: stdout, err: stderr})
	return command.Run()
}

// parse reads the command line, the SHOP_ variables of the environment, and the files of secrets that they name.
func parse(parser *kong.Kong, args []string) (*kong.Context, error) {
	command, err := parser.Parse(args)
	if err != nil {
		return nil, err
	}
	return command, readSecrets(command.Selected())
}

// streams are the outputs of a command: out for its result, err for logs and errors.
type streams struct{ out, err io.Writer }

func newParser(stdout, stderr io.Writer) (*kong.Kong, error) {
	return kong.New(&commands{},
		kong.Name("shop"),
		kong.Description("Take orders, cancel those that are not paid by their deadline, and release their stock."),
		kong.Writers(stdout, stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Vars{"version": version()},
	)
}

// usageError is an error in the command line or the environment. The caller must change one of them.
type usageError struct{ error }

// errFailed is the error of a command that has already printed what is wrong.
var errFailed = errors.New("failed")

// exitCode returns the exit code of the process: 0 for nil, 2 for a [usageError], 1 for any other error. It writes err
// to stderr in one line, unless err is nil or errFailed.
func exitCode(err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	if !errors.Is(err, errFailed) {
		// An error of a driver may have several lines.
		fmt.Fprintln(stderr, "shop:", strings.Join(strings.Fields(err.Error()), " "))
	}
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}
