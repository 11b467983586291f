package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"example.com/shop/internal/app"
	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
)

func testParser(t *testing.T, out io.Writer) *kong.Kong {
	t.Helper()
	parser, err := app.NewParser(app.Program{Name: "shop", Out: out, Err: out}, &commands{})
	if err != nil {
		t.Fatal(err)
	}
	parser.Exit = func(int) {} // otherwise --help ends the test process
	return parser
}

// setEnvironment sets variables, and unsets the variables of all other options, which the tests may have inherited.
func setEnvironment(t *testing.T, variables map[string]string) {
	t.Helper()
	for _, o := range allOptions(testParser(t, io.Discard)) {
		t.Setenv(o.variable, "") // restores the variable after the test
		if err := os.Unsetenv(o.variable); err != nil {
			t.Fatal(err)
		}
	}
	for name, value := range variables {
		t.Setenv(name, value)
	}
}

// TestSecrets checks each secret of each command, set as a value and in a file, by flags and by the environment.
func TestSecrets(t *testing.T) {
	const secret = "a value with spaces inside"
	files := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(files, name)
		testenv.Must(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	mounted, padded, empty, blank := file("mounted", secret+"\n"), file("padded", " \t\r\n"+secret+"\r\n\n"), file("empty", ""), file("blank", " \n")
	missing := filepath.Join(files, "missing")
	tests := []struct {
		name        string
		value, file string
		want        string
		wantErr     []string // parts of the error
	}{
		{"neither", "", "", "", nil},
		{"a value", secret, "", secret, nil},
		{"a value in white space", " \t\r\n" + secret + "\n ", "", secret, nil},
		{"a file", "", mounted, secret, nil},
		{"a file with white space around the value", "", padded, secret, nil},
		{"a blank value", " \t\n", "", "", nil}, // the command that needs it reports it as missing
		{"a blank value and a file", " ", mounted, secret, nil},
		{"both", secret, mounted, "", []string{"OPTION", "OPTION_FILE", "not both"}},
		{"a missing file", "", missing, "", []string{"OPTION_FILE", missing, "no such file"}},
		{"a directory", "", files, "", []string{"OPTION_FILE", files, "is a directory"}},
		{"an empty file", "", empty, "", []string{"OPTION_FILE", empty, "empty", "OPTION"}},
		{"a blank file", "", blank, "", []string{"OPTION_FILE", blank, "empty", "OPTION"}},
	}
	flags := secretFlags(t)
	if len(flags) < 3 {
		t.Errorf("the secrets are %q, want at least 3", flags)
	}
	for i, flag := range flags {
		secretOption, fileOption := optionOf(t, flag), optionOf(t, flag+"-file")
		for j, command := range secretOption.commands {
			for _, tt := range tests {
				if (i > 0 || j > 0) && tt.name != "a value" && tt.name != "a file" && tt.name != "both" {
					continue // app.ReadSecrets reads all secrets, so one option of one command is tried in all ways
				}
				for _, source := range []string{"flags", "environment"} {
					t.Run(fmt.Sprintf("%s of %s by %s/%s", flag, command.name, source, tt.name), func(t *testing.T) {
						args := strings.Fields(command.name)
						setEnvironment(t, nil)
						if source == "flags" {
							args = append(args, "--"+flag, tt.value, "--"+flag+"-file", tt.file)
						} else {
							t.Setenv(secretOption.variable, tt.value)
							t.Setenv(fileOption.variable, tt.file)
						}
						got, err := parsedSecret(t, flag, args)
						if tt.wantErr == nil {
							if err != nil || got != tt.want {
								t.Errorf("got %q, %v; want %q", got, err, tt.want)
							}
							return
						}
						if err == nil {
							t.Fatalf("got %q, want an error", got)
						}
						for _, part := range tt.wantErr {
							part = strings.NewReplacer("OPTION_FILE", app.OptionName(flag+"-file"), "OPTION", app.OptionName(flag)).Replace(part)
							if !strings.Contains(err.Error(), part) {
								t.Errorf("got %q, want %q in it", err, part)
							}
						}
						if text := err.Error(); strings.Contains(text, secret) || strings.Contains(text, "\n") {
							t.Errorf("got %q, want one line without the secret", text)
						}
					})
				}
			}
		}
	}
}

// secretFlags returns the names of the options that hold a secret. Each has another option for the file with its value.
func secretFlags(t *testing.T) (flags []string) {
	for _, o := range allOptions(testParser(t, io.Discard)) {
		if flag, ok := strings.CutSuffix(o.flag, "-file"); ok {
			flags = append(flags, flag)
		}
	}
	return flags
}

// parsedSecret parses a command line, and returns the value of a secret.
func parsedSecret(t *testing.T, flag string, args []string) (string, error) {
	t.Helper()
	command, err := app.Parse(testParser(t, io.Discard), args)
	if err != nil {
		return "", err
	}
	flags := command.Selected().Flags
	i := slices.IndexFunc(flags, func(f *kong.Flag) bool { return f.Name == flag })
	return flags[i].Target.String(), nil
}

func optionOf(t *testing.T, flag string) optionRow {
	t.Helper()
	options := allOptions(testParser(t, io.Discard))
	i := slices.IndexFunc(options, func(o optionRow) bool { return o.flag == flag })
	if i < 0 {
		t.Fatalf("no command has the option --%s", flag)
	}
	return options[i]
}

// TestSecretsHaveFileOptions checks that each secret and the option of its file belong to the same commands.
func TestSecretsHaveFileOptions(t *testing.T) {
	for _, o := range allOptions(testParser(t, io.Discard)) {
		if secret, ok := strings.CutSuffix(o.flag, "-file"); ok && !slices.Equal(o.commands, optionOf(t, secret).commands) {
			t.Errorf("--%s is an option of %v, but --%s of %v", secret, optionOf(t, secret).commands, o.flag, o.commands)
		}
	}
}

// parsedOptions returns the options of serve with the given flags.
func parsedOptions(flags ...string) serveCommand {
	var c commands
	parser, err := app.NewParser(app.Program{Name: "shop", Out: io.Discard, Err: io.Discard}, &c)
	if err == nil {
		_, err = parser.Parse(append([]string{"serve"}, flags...))
	}
	if err != nil {
		panic(err)
	}
	return c.Serve
}

// withServers sets the options that validate requires, in addition to the secrets of the API.
func withServers(o serveCommand) serveCommand {
	o.HTTPAddr = "127.0.0.1:8080"
	o.DatabaseURL, o.RedisURL = "postgres://shop@db/shop", "redis://cache:6379/0"
	o.Drain = 0
	o.Order = order.Options{OrderTimeout: 30 * time.Minute}
	return o
}

// secretsOfAPI are the secrets that a process with the role api must have.
var secretsOfAPI = []string{
	"--token-key=0123456789abcdef0123456789abcdef",
	"--ops-token=0123456789abcdef",
}

// validOptions returns options that validate accepts, with as few parts as possible.
func validOptions() serveCommand { return withServers(parsedOptions(secretsOfAPI...)) }

// fullOptions returns options that validate accepts, with a value for each secret and each URL, so that no part is left
// out.
func fullOptions() serveCommand {
	parser, err := app.NewParser(program(), &commands{})
	if err != nil {
		panic(err)
	}
	var flags []string
	for _, o := range allOptions(parser) {
		switch {
		case !slices.ContainsFunc(o.commands, func(c commandDefault) bool { return c.name == "serve" }):
		case o.placeholder == "SECRET":
			flags = append(flags, "--"+o.flag+"=0123456789abcdef-"+o.flag+"-0123456789abcdef")
		case o.placeholder == "URL":
			flags = append(flags, "--"+o.flag+"=http://127.0.0.1:1")
		}
	}
	return withServers(parsedOptions(flags...))
}

func TestValidate(t *testing.T) {
	tests := []validation{
		{"valid", func(*serveCommand) {}, nil},
		{"an address without a host", func(o *serveCommand) { o.HTTPAddr = ":0" }, nil},
		{"shortest timeout", func(o *serveCommand) { o.Order.OrderTimeout = time.Second }, nil},
		{"longest timeout", func(o *serveCommand) { o.Order.OrderTimeout = 720 * time.Hour }, nil},
		{"longest extension", func(o *serveCommand) { o.Order.OrderExtension = 720 * time.Hour }, nil},
		{"no drain", func(o *serveCommand) { o.Drain = 0 }, nil},
		{"longest drain", func(o *serveCommand) { o.Drain = 5 * time.Minute }, nil},
		{"no secrets without the role api", func(o *serveCommand) {
			o.Roles, o.TokenKey = []string{"relay", "worker", "reconciler"}, ""
		}, nil},
		{"no options", func(o *serveCommand) { *o = serveCommand{}; o.Roles = []string{app.API} }, []string{
			"missing SHOP_DATABASE_URL (--database-url), SHOP_HTTP_ADDR (--http-addr), SHOP_REDIS_URL (--redis-url)",
			"missing SHOP_TOKEN_KEY (--token-key)",
		}},
		{"no options without the role api", func(o *serveCommand) { *o = serveCommand{}; o.Roles = []string{app.Worker} }, []string{
			"missing SHOP_DATABASE_URL (--database-url), SHOP_HTTP_ADDR (--http-addr), SHOP_REDIS_URL (--redis-url)",
		}},
		{"an address without a port", func(o *serveCommand) { o.HTTPAddr = "localhost" }, []string{"SHOP_HTTP_ADDR (--http-addr)", "missing port"}},
		{"timeout too short", func(o *serveCommand) { o.Order.OrderTimeout = time.Second - 1 }, []string{"SHOP_ORDER_TIMEOUT (--order-timeout) is 999.999999ms, want 1s to 720h"}},
		{"timeout too long", func(o *serveCommand) { o.Order.OrderTimeout = 720*time.Hour + 1 }, []string{"SHOP_ORDER_TIMEOUT"}},
		{"negative timeout", func(o *serveCommand) { o.Order.OrderTimeout = -time.Hour }, []string{"SHOP_ORDER_TIMEOUT"}},
		{"extension too long", func(o *serveCommand) { o.Order.OrderExtension = 720*time.Hour + 1 }, []string{"SHOP_ORDER_EXTENSION (--order-extension)", "want 0s to 720h"}},
		{"negative extension", func(o *serveCommand) { o.Order.OrderExtension = -1 }, []string{"SHOP_ORDER_EXTENSION"}},
		{"negative bounds", func(o *serveCommand) { o.Order.MaxOpenOrders, o.Order.MaxOpenUnits = -1, -2 }, []string{
			"SHOP_MAX_OPEN_ORDERS (--max-open-orders) is -1, want at least 1, or 0 for no bound", "SHOP_MAX_OPEN_UNITS (--max-open-units) is -2",
		}},
		{"drain too long", func(o *serveCommand) { o.Drain = 5*time.Minute + 1 }, []string{"SHOP_DRAIN (--drain)", "want 0s to 5m"}},
		{"negative drain", func(o *serveCommand) { o.Drain = -1 }, []string{"SHOP_DRAIN"}},
		{"a secret from an example", func(o *serveCommand) { o.TokenKey = strings.Repeat("changeme", 4) }, []string{"SHOP_TOKEN_KEY (--token-key)", "changeme"}},
		{"a short secret", func(o *serveCommand) { o.TokenKey = "x1" }, []string{"SHOP_TOKEN_KEY (--token-key) has 2 bytes, want at least 32"}},
		{"no look-ahead", func(o *serveCommand) { o.ReconcileLookahead = 0 }, []string{"SHOP_RECONCILE_LOOKAHEAD (--reconcile-lookahead) is 0s"}},
		{"negative look-ahead", func(o *serveCommand) { o.ReconcileLookahead = -time.Minute }, []string{"SHOP_RECONCILE_LOOKAHEAD (--reconcile-lookahead) is -1m0s"}},
		{"several errors", func(o *serveCommand) { o.RedisURL, o.TokenKey, o.Order.OrderTimeout, o.HTTPAddr = "", "x", 0, "x" }, []string{
			"SHOP_REDIS_URL", "SHOP_TOKEN_KEY", "SHOP_ORDER_TIMEOUT", "SHOP_HTTP_ADDR",
		}},
	}
	checkValidation(t, tests)
}

// validation is a change of valid options.
type validation struct {
	name   string
	change func(*serveCommand)
	want   []string // parts of the error; nil if the options are valid
}

// checkValidation checks the errors of options that are changed.
func checkValidation(t *testing.T, tests []validation) {
	t.Helper()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := validOptions()
			tt.change(&o)
			err := o.Check()
			if (err == nil) != (tt.want == nil) {
				t.Fatalf("got %v, want %q", err, tt.want)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("got %q, want %q in it", err, part)
				}
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("got %q, want one line", err)
			}
		})
	}
}

func TestCheckSecret(t *testing.T) {
	tests := []struct {
		name, secret, want string
	}{
		{"random", "9f86d081884c7d65", ""},
		{"empty", "", ""},
		{"one byte too short", "9f86d081884c7d6", "has 15 bytes, want at least 16"},
		{"one character", strings.Repeat("a", 64), "has 1 different bytes, want at least 5"},
		{"two characters", strings.Repeat("ab", 32), "has 2 different bytes"},
		{"two characters, one of them once", strings.Repeat("a", 63) + "b", "has 2 different bytes"},
		{"four characters", strings.Repeat("1234", 8), "has 4 different bytes"},
		{"five characters", strings.Repeat("12345", 8), ""},
		{"a word from an example", "changeme-9f86d081884c7d65", `the word "changeme"`},
		{"a word from an example in capitals", "9f86d081-PassWord-884c7d65", `the word "password"`},
		{"the word example", "this-is-an-example-token", `the word "example"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if err := app.CheckSecret("some-token", tt.secret, 16); err != nil {
				got = err.Error()
			}
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
				t.Errorf("got the error %q, want %q", got, tt.want)
			}
			if tt.want != "" && !strings.HasPrefix(got, "SHOP_SOME_TOKEN (--some-token) ") {
				t.Errorf("got the error %q, want the name of the option at its start", got)
			}
			if tt.secret != "" && strings.Contains(got, tt.secret) {
				t.Errorf("got the error %q, want it without the secret", got)
			}
		})
	}
}

// TestExitCodes runs commands that end before they serve. After exit code 2 the caller must change the command line or
// the environment, and the message says which option.
func TestExitCodes(t *testing.T) {
	database := "--database-url=" + testenv.Postgres(t)
	serve := func(args ...string) []string {
		return append(append([]string{"serve", "--http-addr=127.0.0.1:0"}, secretsOfAPI...), args...)
	}
	tests := []struct {
		name        string
		environment map[string]string
		args        []string
		code        int
		want        []string // parts of the output
	}{
		{"version", nil, []string{"version"}, 0, []string{"shop "}},
		{"no command", nil, nil, 2, []string{"missing a command: shop --help"}},
		{"unknown command", nil, []string{"sevre"}, 2, []string{"sevre"}},
		{"unknown flag", nil, []string{"serve", "--port=1"}, 2, []string{"--port"}},
		{"invalid duration", nil, []string{"serve", "--order-timeout=30"}, 2, []string{"--order-timeout"}},
		{"invalid duration in the environment", map[string]string{"SHOP_ORDER_TIMEOUT": "soon"}, []string{"serve"}, 2, []string{"SHOP_ORDER_TIMEOUT", "soon"}},
		{"unknown role", nil, []string{"serve", "--roles=api,cook"}, 2, []string{"--roles", `"cook"`}},
		{"unknown log level", nil, []string{"doctor", "--log-level=loud"}, 2, []string{"--log-level", `"loud"`}},
		{"serve without options", nil, []string{"serve"}, 2, []string{"SHOP_HTTP_ADDR", "SHOP_DATABASE_URL", "SHOP_REDIS_URL", "SHOP_TOKEN_KEY"}},
		{"no role", nil, serve(database, "--redis-url=redis://127.0.0.1:1/0", "--roles="), 2, []string{"SHOP_ROLES"}},
		{"migrate without a database", nil, []string{"migrate"}, 2, []string{"SHOP_DATABASE_URL"}},
		{"reconcile without servers", nil, []string{"reconcile"}, 2, []string{"SHOP_DATABASE_URL", "SHOP_REDIS_URL"}},
		{"doctor without servers", nil, []string{"doctor"}, 2, []string{"SHOP_DATABASE_URL", "SHOP_REDIS_URL"}},
		{"health without an address", nil, []string{"health"}, 2, []string{"SHOP_HTTP_ADDR"}},
		{"health with an address without a port", nil, []string{"health", "--http-addr=8080"}, 2, []string{"SHOP_HTTP_ADDR", "missing port"}},
		{"serve without a database server", nil, serve("--database-url=postgres://shop:hunter2@127.0.0.1:1/shop", "--redis-url=redis://127.0.0.1:1/0"), 1, []string{"127.0.0.1:1"}},
		{"invalid scheme of the database URL", nil, []string{"doctor", "--database-url=mysql://shop:hunter2@db/shop", "--redis-url=redis://127.0.0.1:1/0"}, 2, []string{
			"SHOP_DATABASE_URL (--database-url) is wrong, want postgres://",
		}},
		{"invalid scheme of the Redis URL", nil, serve(database, "--redis-url=http://:hunter2@cache"), 2, []string{"Redis URL"}},
		{"Redis URL of a socket", nil, serve(database, "--redis-url=unix:///run/redis.sock"), 2, []string{"Redis URL", "redis://"}},
		{"too many shards", nil, serve(database, "--redis-url=redis://127.0.0.1:1/0", "--queue-shards=1025"), 2, []string{"SHOP_QUEUE_SHARDS", "1 to 1024"}},
		{"invalid schedule", nil, serve(database, "--redis-url=redis://127.0.0.1:1/0", "--reconcile-schedule=often"), 2, []string{`"often"`}},
		{"a schedule with the interval 0", nil, serve(database, "--redis-url=redis://127.0.0.1:1/0", "--reconcile-schedule=@every 0s"), 2, []string{`"@every 0s"`, "at least 1s"}},
		{"reconcile with a negative interval", nil, []string{"reconcile", database, "--redis-url=redis://127.0.0.1:1/0", "--reconcile-schedule=@every -5s"}, 2, []string{`"@every -5s"`, "at least 1s"}},
		{"doctor with the Redis database -1", nil, []string{"doctor", database, "--redis-url=redis://:hunter2@127.0.0.1:1/-1"}, 2, []string{"database is -1"}},
		{"export without an age", nil, []string{"export", database, "--redis-url=redis://127.0.0.1:1/0"}, 2, []string{"SHOP_KEEP", "--keep", "at least 1s"}},
		{"reconcile without a look-ahead", nil, []string{"reconcile", database, "--redis-url=redis://127.0.0.1:1/0", "--reconcile-lookahead=0"}, 2, []string{"SHOP_RECONCILE_LOOKAHEAD"}},
		{"demo with a short timeout", nil, []string{"demo", "--order-timeout=1ms"}, 2, []string{"SHOP_ORDER_TIMEOUT"}},
		{"a blank token key", map[string]string{"SHOP_TOKEN_KEY": strings.Repeat(" ", 32)}, []string{"serve"}, 2, []string{"missing", "SHOP_TOKEN_KEY"}},
		{"an address of another machine", nil, serve(database, "--redis-url=redis://127.0.0.1:1/0", "--http-addr=192.0.2.1:80"), 1, []string{"SHOP_HTTP_ADDR"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			setEnvironment(t, tt.environment)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // a command may serve instead
			defer cancel()
			var out strings.Builder
			code := runCommand(ctx, tt.args, &out)
			if code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			for _, part := range tt.want {
				if !strings.Contains(out.String(), part) {
					t.Errorf("printed %q, want %q in it", out.String(), part)
				}
			}
			if strings.Contains(out.String(), "hunter2") {
				t.Errorf("printed %q, want it without the password", out.String())
			}
			if text := strings.TrimSpace(out.String()); strings.Contains(text, "\n") {
				t.Errorf("printed %q, want one line", text)
			}
		})
	}
}

// TestExitCodeOutput checks that nothing is printed for ErrFailed, and any other error in one line.
func TestExitCodeOutput(t *testing.T) {
	var out strings.Builder
	shop := app.Program{Name: "shop", Err: &out}
	if code := app.ExitCode(fmt.Errorf("doctor: %w", app.ErrFailed), shop); code != 1 || out.Len() > 0 {
		t.Errorf("got exit code %d and the output %q, want 1 and no output", code, out.String())
	}
	if code := app.ExitCode(errors.New("two\n  lines"), shop); code != 1 || out.String() != "shop: two lines\n" {
		t.Errorf("got exit code %d and the output %q, want 1 and one line", code, out.String())
	}
}

// TestVariableNames checks that each variable is named after its flag.
func TestVariableNames(t *testing.T) {
	options := allOptions(testParser(t, io.Discard))
	if len(options) == 0 {
		t.Fatal("the command line has no options")
	}
	for _, o := range options {
		if got, want := fmt.Sprintf("%s (--%s)", o.variable, o.flag), app.OptionName(o.flag); got != want {
			t.Errorf("got the option %s, want %s", got, want)
		}
	}
}

// optionRow is an option of one or more commands, as the parser knows it.
type optionRow struct {
	variable, flag, help string
	placeholder          string
	commands             []commandDefault
}

// commandDefault is a command and the default value that it gives an option.
type commandDefault struct{ name, value string }

// row returns the cells of the option in the documents' tables, without the meaning. The default is that of the first
// command. The defaults of other commands follow it if they differ. A command of a part stands only in the rows of the
// options that no other command has, so that the other rows stay as they are without the part.
func (o optionRow) row() []string {
	ofPart := func(c commandDefault) bool { return hasOwnDocument(c.name) }
	if slices.ContainsFunc(o.commands, func(c commandDefault) bool { return !ofPart(c) }) {
		o.commands = slices.DeleteFunc(slices.Clone(o.commands), ofPart)
	}
	show := func(value string) string {
		if value == "" {
			return "–"
		}
		return "`" + value + "`"
	}
	defaults := show(o.commands[0].value)
	var names []string
	for _, c := range o.commands {
		names = append(names, "`"+c.name+"`")
		if c.value != o.commands[0].value {
			defaults += fmt.Sprintf(" (`%s`: %s)", c.name, show(c.value))
		}
	}
	return []string{"`" + o.variable + "`", "`--" + o.flag + "`", defaults, strings.Join(names, ", ")}
}

// hasOwnDocument reports whether a document of its own describes a command: those of payments have docs/payments.md, and
// the demo and the search for an order have theirs.
func hasOwnDocument(path string) bool {
	name, _, _ := strings.Cut(path, " ")
	return slices.Contains([]string{"order", "demo", "payments", "provider"}, name)
}

// allOptions returns the options of all commands. Those of `serve`, which has most of them, come first.
func allOptions(parser *kong.Kong) []optionRow {
	commands := parser.Model.Leaves(true)
	slices.SortStableFunc(commands, func(a, b *kong.Node) int { return cmp.Compare(rank(a), rank(b)) })
	var options []optionRow
	for _, command := range commands {
		for _, flag := range command.Flags {
			i := slices.IndexFunc(options, func(o optionRow) bool { return o.flag == flag.Name })
			if i < 0 {
				i = len(options)
				options = append(options, optionRow{variable: strings.Join(flag.Envs, ","), flag: flag.Name, help: flag.Help, placeholder: flag.PlaceHolder})
			}
			if d := (commandDefault{command.Path(), flag.Default}); !slices.Contains(options[i].commands, d) {
				options[i].commands = append(options[i].commands, d)
			}
		}
	}
	return options
}

// rank sorts serve before the other commands, and those of a group behind them.
func rank(command *kong.Node) int {
	switch {
	case command.Name == "serve":
		return 0
	case command.Parent != nil && command.Parent.Type == kong.CommandNode:
		return 2
	}
	return 1
}
