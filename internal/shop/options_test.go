package shop_test

import (
	"context"
	"io"
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

// withServers sets the options that validate requires, in addition to the secrets of the API.
func withServers(o shop.Serve) shop.Serve {
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
func validOptions() shop.Serve { return withServers(parsedOptions(secretsOfAPI...)) }

func TestValidate(t *testing.T) {
	tests := []validation{
		{"valid", func(*shop.Serve) {}, nil},
		{"an address without a host", func(o *shop.Serve) { o.HTTPAddr = ":0" }, nil},
		{"shortest timeout", func(o *shop.Serve) { o.Order.OrderTimeout = time.Second }, nil},
		{"longest timeout", func(o *shop.Serve) { o.Order.OrderTimeout = 720 * time.Hour }, nil},
		{"longest extension",
			func(o *shop.Serve) { o.Order.OrderExtension, o.Order.MaxExtensions = 720*time.Hour, 1000 }, nil},
		{"no drain", func(o *shop.Serve) { o.Drain = 0 }, nil},
		{"longest drain", func(o *shop.Serve) { o.Drain = 5 * time.Minute }, nil},
		{"no secrets without the role api", func(o *shop.Serve) {
			o.Roles, o.TokenKey = []string{"relay", "worker", "reconciler"}, ""
		}, nil},
		{"no options", func(o *shop.Serve) { *o = shop.Serve{}; o.Roles = []string{app.API} }, []string{
			"missing SHOP_HTTP_ADDR (--http-addr); missing SHOP_DATABASE_URL (--database-url), SHOP_REDIS_URL " +
				"(--redis-url)",
			"missing SHOP_TOKEN_KEY (--token-key)",
		}},
		{"no options without the role api", func(o *shop.Serve) { *o = shop.Serve{}; o.Roles = []string{app.Worker} },
			[]string{
				"missing SHOP_HTTP_ADDR (--http-addr); missing SHOP_DATABASE_URL (--database-url), SHOP_REDIS_URL " +
					"(--redis-url)",
			}},
		{"an address without a port", func(o *shop.Serve) { o.HTTPAddr = "localhost" },
			[]string{"SHOP_HTTP_ADDR (--http-addr)", "missing port"}},
		{"timeout too short", func(o *shop.Serve) { o.Order.OrderTimeout = time.Second - 1 },
			[]string{"SHOP_ORDER_TIMEOUT (--order-timeout) is 999.999999ms, want 1s to 720h"}},
		{"timeout too long", func(o *shop.Serve) { o.Order.OrderTimeout = 720*time.Hour + 1 },
			[]string{"SHOP_ORDER_TIMEOUT"}},
		{"negative timeout", func(o *shop.Serve) { o.Order.OrderTimeout = -time.Hour }, []string{"SHOP_ORDER_TIMEOUT"}},
		{"extension too long", func(o *shop.Serve) { o.Order.OrderExtension = 720*time.Hour + 1 },
			[]string{"SHOP_ORDER_EXTENSION (--order-extension)", "want 0s to 720h"}},
		{"no number of extensions without an extension",
			func(o *shop.Serve) { o.Order.OrderExtension, o.Order.MaxExtensions = 0, 0 }, nil},
		{"no number of extensions",
			func(o *shop.Serve) { o.Order.OrderExtension, o.Order.MaxExtensions = time.Minute, 0 }, []string{
				"SHOP_MAX_EXTENSIONS (--max-extensions) is 0, want 1 to 1000; without extensions set " +
					"SHOP_ORDER_EXTENSION (--order-extension) to 0s",
			}},
		{"too many extensions", func(o *shop.Serve) { o.Order.MaxExtensions = 1001 },
			[]string{"SHOP_MAX_EXTENSIONS", "1001"}},
		{"negative extension", func(o *shop.Serve) { o.Order.OrderExtension = -1 }, []string{"SHOP_ORDER_EXTENSION"}},
		{"negative bounds", func(o *shop.Serve) { o.Order.MaxOpenOrders, o.Order.MaxOpenUnits = -1, -2 }, []string{
			"SHOP_MAX_OPEN_ORDERS (--max-open-orders) is -1, want at least 1, or 0 for no bound", "SHOP_MAX_OPEN_UNITS (--max-open-units) is -2",
		}},
		{"drain too long", func(o *shop.Serve) { o.Drain = 5*time.Minute + 1 },
			[]string{"SHOP_DRAIN (--drain)", "want 0s to 5m"}},
		{"negative drain", func(o *shop.Serve) { o.Drain = -1 }, []string{"SHOP_DRAIN"}},
		{"a secret from an example", func(o *shop.Serve) { o.TokenKey = strings.Repeat("changeme", 4) },
			[]string{"SHOP_TOKEN_KEY (--token-key)", "changeme"}},
		{"a short secret", func(o *shop.Serve) { o.TokenKey = "x1" },
			[]string{"SHOP_TOKEN_KEY (--token-key) has 2 bytes, want at least 32"}},
		{"no look-ahead", func(o *shop.Serve) { o.ReconcileLookahead = 0 },
			[]string{"SHOP_RECONCILE_LOOKAHEAD (--reconcile-lookahead) is 0s"}},
		{"negative look-ahead", func(o *shop.Serve) { o.ReconcileLookahead = -time.Minute },
			[]string{"SHOP_RECONCILE_LOOKAHEAD (--reconcile-lookahead) is -1m0s"}},
		{"several errors",
			func(o *shop.Serve) { o.RedisURL, o.TokenKey, o.Order.OrderTimeout, o.HTTPAddr = "", "x", 0, "x" }, []string{
				"SHOP_REDIS_URL", "SHOP_TOKEN_KEY", "SHOP_ORDER_TIMEOUT", "SHOP_HTTP_ADDR",
			}},
	}
	checkValidation(t, tests)
}

// validation is a change of valid options.
type validation struct {
	name   string
	change func(*shop.Serve)
	want   []string // parts of the error; nil if the options are valid
}

// checkValidation checks the errors of options that are changed.
func checkValidation(t *testing.T, tests []validation) {
	t.Helper()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := validOptions()
			tt.change(&o)
			programtest.CheckError(t, o.Check(), tt.want)
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
		{"invalid duration in the environment", map[string]string{"SHOP_ORDER_TIMEOUT": "soon"}, []string{"serve"}, 2,
			[]string{"SHOP_ORDER_TIMEOUT", "soon"}},
		{"unknown role", nil, []string{"serve", "--roles=api,cook"}, 2, []string{"--roles", `"cook"`}},
		{"unknown log level", nil, []string{"doctor", "--log-level=loud"}, 2, []string{"--log-level", `"loud"`}},
		{"several wrong values", nil, serve(
			"--database-url=mysql://db/shop", "--database-conns=1", "--redis-url=http://:hunter2@cache", "--queue-shards=0",
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
		{"several wrong values of the demo", nil, []string{
			"demo", "--order-timeout=1ms", "--log-level=loud",
		}, 2, []string{"SHOP_ORDER_TIMEOUT", "SHOP_LOG_LEVEL"}},
		{"no role", nil, serve(database, "--redis-url=redis://127.0.0.1:1/0", "--roles="), 2, []string{"SHOP_ROLES"}},
		{"migrate without a database", nil, []string{"migrate"}, 2, []string{"SHOP_DATABASE_URL"}},
		{"reconcile without servers", nil, []string{"reconcile"}, 2, []string{"SHOP_DATABASE_URL", "SHOP_REDIS_URL"}},
		{"doctor without servers", nil, []string{"doctor"}, 2, []string{"SHOP_DATABASE_URL", "SHOP_REDIS_URL"}},
		{"health without an address", nil, []string{"health"}, 2, []string{"SHOP_HTTP_ADDR"}},
		{"health with an address without a port", nil, []string{"health", "--http-addr=8080"}, 2,
			[]string{"SHOP_HTTP_ADDR", "missing port"}},
		{"serve without a database server", nil, serve("--database-url=postgres://shop:hunter2@127.0.0.1:1/shop",
			"--redis-url=redis://127.0.0.1:1/0"), 1, []string{"127.0.0.1:1"}},
		{"invalid scheme of the database URL", nil, []string{"doctor", "--database-url=mysql://shop:hunter2@db/shop",
			"--redis-url=redis://127.0.0.1:1/0"}, 2, []string{
			"SHOP_DATABASE_URL (--database-url) is wrong, want postgres://",
		}},
		{"no Redis", nil, serve(database, "--redis-url=none"), 2,
			[]string{"SHOP_REDIS_URL (--redis-url) is wrong", "redis://[user:password@]host:port"}},
		{"too many shards", nil, serve(database, "--redis-url=redis://127.0.0.1:1/0", "--queue-shards=1025"), 2,
			[]string{"SHOP_QUEUE_SHARDS", "1 to 1024"}},
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
