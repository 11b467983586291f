package shop_test

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/internal/order"
	"example.com/shop/internal/shop"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/programtest"
)

// parsedOptions returns the options of serve with the given flags.
func parsedOptions(flags ...string) shop.Serve {
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

// secretsOfAPI are the secrets that a process with the role api must have.
var secretsOfAPI = []string{
	"--token-key=0123456789abcdef0123456789abcdef",
	"--ops-token=0123456789abcdef",
}

// requiredOptions are the options without a default.
var requiredOptions = append([]string{
	"--http-addr=127.0.0.1:8080", "--database-url=postgres://shop@db/shop", "--redis-url=redis://cache:6379/0",
}, secretsOfAPI...)

// validOptions returns options that are valid, with as few parts as possible.
func validOptions() shop.Serve {
	o := parsedOptions(requiredOptions...)
	o.Drain, o.Order = 0, order.Options{OrderTimeout: 30 * time.Minute}
	return o
}

// TestOptions checks the error about options of serve. The flags of each row follow the required ones, and replace
// them.
func TestOptions(t *testing.T) {
	const noServers = "missing SHOP_HTTP_ADDR (--http-addr); missing SHOP_DATABASE_URL (--database-url), " +
		"SHOP_REDIS_URL (--redis-url)"
	for _, test := range []struct {
		flags string
		want  []string // parts of the error; nil if the options are valid
	}{
		{"", nil},
		{"--http-addr=:0", nil},
		{"--order-timeout=1s", nil},
		{"--order-timeout=720h", nil},
		{"--order-extension=720h --max-extensions=1000", nil},
		{"--order-extension=0s --max-extensions=0", nil},
		{"--drain=0s", nil},
		{"--roles=relay,worker,reconciler --token-key= --ops-token=", nil},
		{"--ops-token=correct horse battery staple", nil},

		{"--http-addr= --database-url= --redis-url= --token-key= --ops-token=",
			[]string{noServers, "missing SHOP_TOKEN_KEY (--token-key)", "missing SHOP_OPS_TOKEN (--ops-token)"}},
		{"--roles=worker --http-addr= --database-url= --redis-url=", []string{noServers}},
		{"--http-addr=localhost", []string{"SHOP_HTTP_ADDR (--http-addr)", "missing port"}},
		{"--redis-url=none", []string{"SHOP_REDIS_URL (--redis-url) is wrong", "redis://[user:password@]host:port"}},
		{"--database-url=mysql://shop@db/shop",
			[]string{"SHOP_DATABASE_URL (--database-url) is wrong, want postgres://"}},
		{"--queue-shards=1025", []string{"SHOP_QUEUE_SHARDS", "1 to 1024"}},
		{"--roles=", []string{"SHOP_ROLES"}},
		{"--order-timeout=999ms", []string{"SHOP_ORDER_TIMEOUT (--order-timeout) is 999ms, want 1s to 720h"}},
		{"--order-extension=720h1ns", []string{"SHOP_ORDER_EXTENSION (--order-extension)", "want 0s to 720h"}},
		{"--order-extension=1m --max-extensions=0",
			[]string{"SHOP_MAX_EXTENSIONS (--max-extensions) is 0, want 1 to 1000; " +
				"without extensions set SHOP_ORDER_EXTENSION (--order-extension) to 0s"}},
		{"--max-extensions=1001", []string{"SHOP_MAX_EXTENSIONS", "1001"}},
		{"--max-open-orders=-1 --max-open-units=-2",
			[]string{"SHOP_MAX_OPEN_ORDERS (--max-open-orders) is -1, want at least 1, or 0 for no bound",
				"SHOP_MAX_OPEN_UNITS (--max-open-units) is -2"}},
		{"--drain=5m1ns", []string{"SHOP_DRAIN (--drain)", "want 0s to 5m"}},
		{"--reconcile-lookahead=0s", []string{"SHOP_RECONCILE_LOOKAHEAD (--reconcile-lookahead) is 0s"}},
		{"--token-key=changemechangemechangemechangeme", []string{"SHOP_TOKEN_KEY (--token-key)", "changeme"}},
		{"--token-key=x1 --ops-token=x2", []string{"SHOP_TOKEN_KEY (--token-key) has 2 bytes, want at least 32",
			"SHOP_OPS_TOKEN (--ops-token) has 2 bytes, want at least 16"}},
		{"--ops-token=0123456789abcdef0123456789abcdef",
			[]string{"SHOP_OPS_TOKEN (--ops-token)", "SHOP_TOKEN_KEY (--token-key)", "same"}},
		{"--ops-token=0123456789abcdé", []string{"SHOP_OPS_TOKEN (--ops-token)", "header"}},
		{"--redis-url= --token-key=x --order-timeout=0s --http-addr=x",
			[]string{"SHOP_REDIS_URL", "SHOP_TOKEN_KEY", "SHOP_ORDER_TIMEOUT", "SHOP_HTTP_ADDR"}},
	} {
		t.Run(test.flags, func(t *testing.T) {
			flags := slices.Clone(requiredOptions)
			for _, flag := range strings.Split(test.flags, "--")[1:] {
				flags = append(flags, "--"+strings.TrimSuffix(flag, " "))
			}
			o := parsedOptions(flags...)
			programtest.CheckError(t, o.Check(), test.want)
		})
	}
}

// TestExitCodes runs commands that end before they serve. TestOptions has further wrong values. After exit code 2 the
// caller must change the command line or the environment, and the message says which option.
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
		{"invalid duration in the environment", map[string]string{"SHOP_ORDER_TIMEOUT": "soon"}, []string{"serve"}, 2,
			[]string{"SHOP_ORDER_TIMEOUT", "soon"}},
		{"several wrong values", nil, serve(
			"--database-url=mysql://shop:hunter2@db/shop", "--database-conns=1",
			"--redis-url=http://:hunter2@cache", "--queue-shards=0",
			"--roles=api,cook", "--log-level=loud", "--order-timeout=1ms", "--reconcile-schedule=often",
		), 2, []string{
			"SHOP_DATABASE_URL", "SHOP_DATABASE_CONNS", "SHOP_REDIS_URL", "SHOP_QUEUE_SHARDS", "SHOP_ROLES", `"cook"`,
			"SHOP_LOG_LEVEL", `"loud"`, "SHOP_ORDER_TIMEOUT", "SHOP_RECONCILE_SCHEDULE", `"often"`,
		}},
		{"several wrong values of a tool", nil, []string{
			"doctor", "--database-url=mysql://db/shop", "--redis-url=http://cache", "--log-level=loud", "--reconcile-schedule=often",
		}, 2, []string{"SHOP_DATABASE_URL", "SHOP_REDIS_URL", "SHOP_LOG_LEVEL", "SHOP_RECONCILE_SCHEDULE"}},
		{"several wrong values of migrate", nil, []string{
			"migrate", "--database-url=mysql://db/shop", "--log-level=loud",
		}, 2, []string{"SHOP_DATABASE_URL", "SHOP_LOG_LEVEL"}},
		{"migrate without a database", nil, []string{"migrate"}, 2, []string{"SHOP_DATABASE_URL"}},
		{"reconcile without servers", nil, []string{"reconcile"}, 2, []string{"SHOP_DATABASE_URL", "SHOP_REDIS_URL"}},
		{"health with an address without a port", nil, []string{"health", "--http-addr=8080"}, 2,
			[]string{"SHOP_HTTP_ADDR", "missing port"}},
		{"serve without a database server", nil, serve("--database-url=postgres://shop:hunter2@127.0.0.1:1/shop",
			"--redis-url=redis://127.0.0.1:1/0"), 1, []string{"127.0.0.1:1"}},
		{"a blank token key", map[string]string{"SHOP_TOKEN_KEY": strings.Repeat(" ", 32)}, []string{"serve"}, 2,
			[]string{"missing", "SHOP_TOKEN_KEY"}},
		{"an address of another machine", nil, serve(database, "--redis-url=redis://127.0.0.1:1/0",
			"--http-addr=192.0.2.1:80"), 1, []string{"SHOP_HTTP_ADDR"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for variable, value := range tt.environment {
				t.Setenv(variable, value)
			}
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
