package app

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

// Program describes the program to its commands.
type Program struct {
	Name        string // also the application_name of its sessions in PostgreSQL, and the prefix of its metrics
	Description string // the first line of the help
	Version     string
	Out         io.Writer // for the result of a command
	Err         io.Writer // for logs and errors
}

// Main runs the command that the process was started with, and ends the process. commands is a pointer to a struct of
// commands, as package kong describes it. The method Run of a command may have a context and a Program as
// parameters. The context ends when the user or the system stops the program.
func Main(program Program, commands any) {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, func() {
		stop()                        // so that a second Ctrl-C ends the process at once
		signal.Ignore(syscall.SIGHUP) // a closed terminal may send it twice
	})
	program.Out, program.Err = os.Stdout, os.Stderr
	os.Exit(ExitCode(Run(ctx, program, commands, os.Args[1:]), program))
}

// Run parses the command line and the environment, and runs one command until the command is done or ctx ends.
func Run(ctx context.Context, program Program, commands any, args []string) error {
	parser, err := NewParser(program, commands)
	if err != nil {
		return err
	}
	switch {
	case len(args) == 0:
		return Usage(fmt.Errorf("missing a command: %s --help lists them", program.Name))
	case args[0] == "help":
		args = append(args[1:], "--help")
	case args[0] == "--version":
		args = []string{"version"}
	}
	command, err := Parse(parser, args)
	if err != nil {
		return Usage(err)
	}
	command.BindTo(ctx, (*context.Context)(nil))
	command.Bind(program)
	if err = command.Run(); errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return errors.New("stopped before it was done")
	}
	return err
}

// NewParser returns the parser of a program's command line and environment. Its help lists first the options that have
// no defaults.
func NewParser(program Program, commands any) (*kong.Kong, error) {
	parser, err := kong.New(commands,
		kong.Name(program.Name),
		kong.Description(program.Description),
		kong.Writers(program.Out, program.Err),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.DefaultEnvars(EnvPrefix),
	)
	if err != nil {
		return nil, err
	}
	for _, command := range parser.Model.Leaves(false) {
		for _, flag := range command.Flags {
			if flag.HasDefault {
				flag.Group = &kong.Group{Key: "defaults", Title: "Options with defaults:"}
			}
		}
	}
	return parser, nil
}

// Parse reads the command line, the environment, and the files of secrets that they name.
func Parse(parser *kong.Kong, args []string) (*kong.Context, error) {
	command, err := parser.Parse(args)
	if err != nil {
		return nil, err
	}
	return command, ReadSecrets(command.Selected())
}

// ErrFailed is the error of a command that has already printed what is wrong.
var ErrFailed = errors.New("failed")

// ExitCode returns the exit code of the process: 0 for nil, 2 for an [UsageError], 1 for any other error. It writes
// err to the program's errors in one line, unless err is nil or [ErrFailed].
func ExitCode(err error, program Program) int {
	if err == nil {
		return 0
	}
	if !errors.Is(err, ErrFailed) {
		// An error of a driver may have several lines.
		fmt.Fprintf(program.Err, "%s: %s\n", program.Name, strings.Join(strings.Fields(err.Error()), " "))
	}
	if errors.As(err, new(UsageError)) {
		return 2
	}
	return 1
}

// ModuleVersion returns the version of the program's module, or "(devel)".
func ModuleVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}

// VersionCommand is `version`.
type VersionCommand struct{}

// Run prints the name and the version of the program.
func (VersionCommand) Run(program Program) error {
	_, err := fmt.Fprintln(program.Out, program.Name, program.Version)
	return err
}
