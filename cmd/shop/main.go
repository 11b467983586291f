// Command shop takes orders that must be paid by a deadline, and cancels on time those that are not.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	os.Exit(exitCode(run(ctx, os.Args[1:], os.Stdout, os.Stderr), os.Stderr))
}

// run is the program: it parses the command line and the SHOP_ environment and runs one command until
// it is done or ctx ends.
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

// parse reads a command line, the SHOP_ environment and the files that they name.
func parse(parser *kong.Kong, args []string) (*kong.Context, error) {
	command, err := parser.Parse(args)
	if err != nil {
		return nil, err
	}
	return command, readSecrets(command.Selected())
}

// streams are where a command writes: what was asked for to out, what happens meanwhile to err.
type streams struct{ out, err io.Writer }

func newParser(stdout, stderr io.Writer) (*kong.Kong, error) {
	return kong.New(&commands{},
		kong.Name("shop"),
		kong.Description("Orders that are cancelled, and their stock released, unless they are paid on time."),
		kong.Writers(stdout, stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Vars{"version": version()},
	)
}

// usageError is a command line or an environment that cannot be run.
type usageError struct{ error }

// errFailed ends a command that has said itself what is wrong.
var errFailed = errors.New("failed")

// exitCode reports err in one line: 2 for what the caller must change, 1 for what went wrong.
func exitCode(err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	if !errors.Is(err, errFailed) {
		// Drivers spread their errors over lines.
		fmt.Fprintln(stderr, "shop:", strings.Join(strings.Fields(err.Error()), " "))
	}
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}
