package programtest

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"example.com/shop/internal/app"
	"example.com/shop/internal/testenv"
)

// Option is an option of one or more commands, as the parser knows it.
type Option struct {
	Variable, Flag, Help string
	Placeholder          string
	Commands             []CommandDefault
}

// CommandDefault is a command and the default value that it gives an option.
type CommandDefault struct{ Command, Value string }

// newParser returns a parser of a command line. commands is a pointer to a struct, see [app.Main].
func newParser(t testing.TB, commands any) *kong.Kong {
	t.Helper()
	parser, err := app.NewParser(app.Program{Name: "program", Out: io.Discard, Err: io.Discard}, commands)
	testenv.Must(t, err)
	return parser
}

// Options returns the options of all commands. Those of `serve`, which has most of them, come first. commands is a
// pointer to a struct, see [app.Main].
func Options(t testing.TB, commands any) (options []Option) {
	t.Helper()
	leaves := newParser(t, commands).Model.Leaves(true)
	slices.SortStableFunc(leaves, func(a, b *kong.Node) int { return cmp.Compare(rank(a), rank(b)) })
	for _, command := range leaves {
		for _, flag := range command.Flags {
			i := slices.IndexFunc(options, func(o Option) bool { return o.Flag == flag.Name })
			if i < 0 {
				i = len(options)
				options = append(options, Option{
					Variable: strings.Join(flag.Envs, ","), Flag: flag.Name, Help: flag.Help,
					Placeholder: flag.PlaceHolder,
				})
			}
			if d := (CommandDefault{command.Path(), flag.Default}); !slices.Contains(options[i].Commands, d) {
				options[i].Commands = append(options[i].Commands, d)
			}
		}
	}
	if len(options) == 0 {
		t.Fatal("the command line has no options")
	}
	return options
}

// rank sorts serve before the other commands, and the commands of a group behind the others.
func rank(command *kong.Node) int {
	switch {
	case command.Name == "serve":
		return 0
	case command.Parent != nil && command.Parent.Type == kong.CommandNode:
		return 2
	}
	return 1
}

// SampleFlags returns flags that set the secrets and the URLs of a command.
func SampleFlags(options []Option, command string) (flags []string) {
	for _, o := range options {
		switch {
		case !slices.ContainsFunc(o.Commands, func(c CommandDefault) bool { return c.Command == command }):
		case o.Placeholder == "SECRET":
			flags = append(flags, "--"+o.Flag+"=0123456789abcdef-"+o.Flag+"-0123456789abcdef")
		case o.Placeholder == "URL":
			flags = append(flags, "--"+o.Flag+"=http://127.0.0.1:1")
		}
	}
	return flags
}

// OptionNames checks that each variable is named after its flag, and that a secret and the option of its file belong to
// the same commands.
func OptionNames(t testing.TB, options []Option) {
	t.Helper()
	commands := map[string][]CommandDefault{}
	for _, o := range options {
		commands[o.Flag] = o.Commands
		if got, want := fmt.Sprintf("%s (--%s)", o.Variable, o.Flag), app.OptionName(o.Flag); got != want {
			t.Errorf("got the option %s, want %s", got, want)
		}
	}
	for _, o := range options {
		if secret, isFile := strings.CutSuffix(o.Flag, "-file"); isFile && !slices.Equal(commands[secret], o.Commands) {
			t.Errorf("--%s is an option of %v, but --%s of %v", secret, commands[secret], o.Flag, o.Commands)
		}
	}
}

// ConfigurationTable compares the tables of options in a module's documents with the options of its program. Each
// option has one row, and each row is of an option.
//
// shared are the documents of another program, from which this program takes some options. Only the variable, the flag
// and the default of a row there must be right, because its commands are commands of the other program. Rows there of
// options that this program does not have are ignored.
//
// apart are commands that documents of their own describe. Such a command stands only in the rows of the options that
// no other command has, so that the other rows stay as they are without it.
func ConfigurationTable(t testing.TB, options []Option, docs, shared Texts, apart ...string) {
	t.Helper()
	rows, sharedRows := optionRows(t, docs), optionRows(t, shared)
	for _, o := range options {
		cells := o.cells(apart)
		row := rows[o.Variable]
		delete(rows, o.Variable)
		if sharedRow := sharedRows[o.Variable]; sharedRow != "" {
			if row != "" {
				t.Errorf("there is a second row for %s:\n%s\n%s", o.Variable, row, sharedRow)
			}
			row, cells = sharedRow, cells[:3]
		}
		want := "| " + strings.Join(cells, " | ") + " | "
		if meaning, ok := strings.CutPrefix(row, want); !ok || meaning == "|" {
			t.Errorf("the documents have the row\n%s\nwant\n%s%s |", row, want, o.Help)
		}
	}
	for variable := range rows {
		t.Errorf("the documents have a row for %s, which is not an option", variable)
	}
}

// optionRows returns the rows of tables of options, by the variables.
func optionRows(t testing.TB, docs Texts) map[string]string {
	t.Helper()
	rows := map[string]string{}
	for doc, text := range docs {
		for _, row := range submatches("(?m)^(\\| `"+app.EnvPrefix+"_\\w+` \\|.*)$", text) {
			variable := submatches("`(\\w+)`", row)[0]
			if rows[variable] != "" {
				t.Errorf("%s has a second row for %s", doc, variable)
			}
			rows[variable] = row
		}
	}
	return rows
}

// cells returns the cells of the option's row, without the meaning: the variable, the flag, the default and the
// commands. The default is that of the first command. The defaults of other commands follow it if they differ.
func (o Option) cells(apart []string) []string {
	isApart := func(c CommandDefault) bool {
		name, _, _ := strings.Cut(c.Command, " ")
		return slices.Contains(apart, name)
	}
	commands := slices.DeleteFunc(slices.Clone(o.Commands), isApart)
	if len(commands) == 0 {
		commands = o.Commands
	}
	show := func(value string) string {
		if value == "" {
			return "–"
		}
		return "`" + value + "`"
	}
	defaults := show(commands[0].Value)
	var names []string
	for _, c := range commands {
		names = append(names, "`"+c.Command+"`")
		if c.Value != commands[0].Value {
			defaults += fmt.Sprintf(" (`%s`: %s)", c.Command, show(c.Value))
		}
	}
	return []string{"`" + o.Variable + "`", "`--" + o.Flag + "`", defaults, strings.Join(names, ", ")}
}
