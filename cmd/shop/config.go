package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// commands is the command line. Every option is a flag and an environment variable. docs/configuration.md lists the
// options, and a test compares its table with them.
type commands struct {
	Demo      demoCommand      `cmd:"" help:"Run the whole service in one process, with a private PostgreSQL and Redis. Their data is deleted when it stops."`
	Serve     serveCommand     `cmd:"" help:"Run the service, or some of its roles."`
	Migrate   migrateCommand   `cmd:"" help:"Create or update the schema of the database."`
	Reconcile reconcileCommand `cmd:"" help:"Compare the orders with Redis once, repair the differences, and print the report."`
	Doctor    doctorCommand    `cmd:"" help:"Check the connections, the schema, the queue, the outbox, the reconciler and the invariants."`
	Provider  providerCommand  `cmd:"" help:"Run a simulator of the payment provider Stripe, for development and tests."`
	Health    healthCommand    `cmd:"" help:"Check whether the process at an address is ready."`
	Version   versionCommand   `cmd:"" help:"Print the version."`
}

// A secret, or an address that may contain a password, has two options: the value itself, and the name of a file with
// the value. See readSecrets.

type databaseOptions struct {
	DatabaseURL     string `name:"database-url" env:"SHOP_DATABASE_URL" placeholder:"URL" help:"The URL of PostgreSQL: postgres://user:password@host:port/database."`
	DatabaseURLFile string `name:"database-url-file" env:"SHOP_DATABASE_URL_FILE" placeholder:"FILE" help:"The file with the database URL, instead of --database-url."`
	DatabaseConns   int    `name:"database-conns" env:"SHOP_DATABASE_CONNS" default:"20" help:"The maximum number of connections from this process to PostgreSQL."`
}

func (o databaseOptions) validate() error {
	if o.DatabaseConns < 2 { // a sweep holds one for its lock, and needs another for its statements
		return fmt.Errorf("%s is %d, want at least 2", optionName("database-conns"), o.DatabaseConns)
	}
	return nil
}

type redisOptions struct {
	RedisURL     string `name:"redis-url" env:"SHOP_REDIS_URL" placeholder:"URL" help:"The URL of Redis: redis://host:port/db. For a cluster: redis://host:port?addr=host:port&addr=host:port."`
	RedisURLFile string `name:"redis-url-file" env:"SHOP_REDIS_URL_FILE" placeholder:"FILE" help:"The file with the Redis URL, instead of --redis-url."`
	QueueShards  int    `name:"queue-shards" env:"SHOP_QUEUE_SHARDS" default:"1" help:"The number of shards of the queue, spread over a cluster's slots. Use the same number for every process."`
}

func (o redisOptions) validate() error {
	if o.QueueShards < 1 {
		return fmt.Errorf("%s is %d, want at least 1", optionName("queue-shards"), o.QueueShards)
	}
	return nil
}

type reconcileOptions struct {
	ReconcileSchedule  string        `name:"reconcile-schedule" env:"SHOP_RECONCILE_SCHEDULE" default:"@every 30s" help:"The schedule of the sweeps, which compare the orders with Redis: a cron expression or @every."`
	ReconcileLookahead time.Duration `name:"reconcile-lookahead" env:"SHOP_RECONCILE_LOOKAHEAD" default:"2m" help:"The sweeps compare the orders that are due within this time. It must be at least twice the schedule's interval."`
}

func (o reconcileOptions) validate() error {
	if o.ReconcileLookahead <= 0 {
		return fmt.Errorf("%s is %v, want at least twice the schedule's interval",
			optionName("reconcile-lookahead"), o.ReconcileLookahead)
	}
	return nil
}

// boundOptions bound what one customer can hold without having paid it.
type boundOptions struct {
	MaxOpenOrders int64 `name:"max-open-orders" env:"SHOP_MAX_OPEN_ORDERS" default:"10" help:"The most orders that a customer can have without having paid them. 0: no bound."`
	MaxOpenUnits  int64 `name:"max-open-units" env:"SHOP_MAX_OPEN_UNITS" default:"20" help:"The most units of a product in the orders that a customer has not paid. 0: no bound."`
}

func (o boundOptions) validate() error {
	return oneLine(checkBound("max-open-orders", o.MaxOpenOrders), checkBound("max-open-units", o.MaxOpenUnits))
}

func checkBound(flag string, bound int64) error {
	if bound < 0 {
		return fmt.Errorf("%s is %d, want at least 1, or 0 for no bound", optionName(flag), bound)
	}
	return nil
}

type logOptions struct {
	LogLevel string `name:"log-level" env:"SHOP_LOG_LEVEL" enum:"debug,info,warn,error" default:"info" help:"The lowest level to log: debug, info, warn or error."`
}

// serveOptions are the options of a process that serves. Addresses and secrets have no defaults: production must set
// them.
type serveOptions struct {
	HTTPAddr       string        `name:"http-addr" env:"SHOP_HTTP_ADDR" placeholder:"HOST:PORT" help:"The address to listen on. Without the role api, only health and metrics are served there."`
	OrderTimeout   time.Duration `name:"order-timeout" env:"SHOP_ORDER_TIMEOUT" default:"30m" help:"The time that a customer has to pay an order."`
	OrderExtension time.Duration `name:"order-extension" env:"SHOP_ORDER_EXTENSION" default:"0s" help:"The time by which a customer can extend the deadline of an order, once. 0s: not at all."`
	Roles          []string      `name:"roles" env:"SHOP_ROLES" enum:"api,relay,worker,reconciler" default:"api,relay,worker,reconciler" help:"The roles of this process: any of api, relay, worker, reconciler."`
	TokenKey       string        `name:"token-key" env:"SHOP_TOKEN_KEY" placeholder:"SECRET" help:"The key that signs the customers' tokens, at least 32 bytes."`
	TokenKeyFile   string        `name:"token-key-file" env:"SHOP_TOKEN_KEY_FILE" placeholder:"FILE" help:"The file with the token key, instead of --token-key."`
	OpsToken       string        `name:"ops-token" env:"SHOP_OPS_TOKEN" placeholder:"SECRET" help:"The token for the operators' API, at least 16 bytes."`
	OpsTokenFile   string        `name:"ops-token-file" env:"SHOP_OPS_TOKEN_FILE" placeholder:"FILE" help:"The file with the operators' token, instead of --ops-token."`
	Drain          time.Duration `name:"drain" env:"SHOP_DRAIN" default:"5s" help:"The time that a process continues to serve after SIGTERM. Meanwhile /readyz answers 503, so that the load balancer removes the process."`

	boundOptions
	paymentOptions
	databaseOptions
	redisOptions
	reconcileOptions
	logOptions
}

func (o *serveOptions) has(role string) bool { return slices.Contains(o.Roles, role) }

// validate returns one error that contains all errors of the options.
func (o *serveOptions) validate() error {
	required := map[string]string{"http-addr": o.HTTPAddr, "database-url": o.DatabaseURL, "redis-url": o.RedisURL}
	var errs []error
	if o.has("api") {
		required["token-key"], required["ops-token"] = o.TokenKey, o.OpsToken
		errs = append(errs,
			checkSecret("token-key", o.TokenKey, 32), checkSecret("ops-token", o.OpsToken, 16), o.checkOpsToken())
	}
	errs = append([]error{
		requireAll(required), o.boundOptions.validate(), o.databaseOptions.validate(), o.redisOptions.validate(), o.reconcileOptions.validate(),
		o.paymentOptions.validate(o.has("api")),
	}, errs...)
	if len(o.Roles) == 0 {
		errs = append(errs,
			fmt.Errorf("%s is empty, want at least one of api, relay, worker, reconciler", optionName("roles")))
	}
	if _, _, err := net.SplitHostPort(o.HTTPAddr); o.HTTPAddr != "" && err != nil {
		errs = append(errs, fmt.Errorf("%s is not of the form host:port: %w", optionName("http-addr"), err))
	}
	if o.OrderTimeout < time.Second || o.OrderTimeout > 30*24*time.Hour {
		errs = append(errs, fmt.Errorf("%s is %v, want 1s to 720h", optionName("order-timeout"), o.OrderTimeout))
	}
	if o.OrderExtension < 0 || o.OrderExtension > 30*24*time.Hour {
		errs = append(errs, fmt.Errorf("%s is %v, want 0s to 720h", optionName("order-extension"), o.OrderExtension))
	}
	if o.Drain < 0 || o.Drain > 5*time.Minute {
		errs = append(errs, fmt.Errorf("%s is %v, want 0s to 5m", optionName("drain"), o.Drain))
	}
	return oneLine(errs...)
}

// readSecrets sets the secrets of a command from their files, and trims them. The option NAME is a secret if the
// command has an option NAME-file. White space at the ends is not part of a secret: editors, `echo` and tools that
// mount secrets add a newline, and an Authorization header cannot carry one.
func readSecrets(command *kong.Node) error {
	flags := map[string]*kong.Flag{}
	for _, flag := range command.Flags {
		flags[flag.Name] = flag
	}
	var errs []error
	for _, file := range command.Flags {
		name, isFile := strings.CutSuffix(file.Name, "-file")
		if secret := flags[name]; isFile && secret != nil {
			value, err := readSecret(name, secret.Target.String(), file.Target.String())
			secret.Target.SetString(value)
			errs = append(errs, err)
		}
	}
	return oneLine(errs...)
}

// readSecret returns a secret that is set as a value or in a file. An unset secret is empty.
func readSecret(flag, value, file string) (string, error) {
	value = strings.TrimSpace(value)
	if file == "" {
		return value, nil
	}
	name, fileName := optionName(flag), optionName(flag+"-file")
	if value != "" {
		return "", fmt.Errorf("%s and %s are set: set one of them, not both", name, fileName)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", fileName, err)
	}
	if value = strings.TrimSpace(string(content)); value == "" {
		return "", fmt.Errorf("%s: the file %s is empty, want the value of %s in it", fileName, file, name)
	}
	return value, nil
}

// requireAll returns an error that names the options without a value. The keys of options are the names of flags.
func requireAll(options map[string]string) error {
	var missing []string
	for flag, value := range options {
		if value == "" {
			missing = append(missing, optionName(flag))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return fmt.Errorf("missing %s", strings.Join(missing, ", "))
}

// checkOpsToken rejects an operators' token that equals the token key, or that a request cannot carry.
func (o *serveOptions) checkOpsToken() error {
	name := optionName("ops-token")
	switch {
	case o.OpsToken == "":
		return nil
	case o.OpsToken == o.TokenKey:
		// Operators send their token over the network. An eavesdropper with the token key could sign a token for any
		// customer.
		return fmt.Errorf("%s is the same as %s: set two different random values, for example from `openssl rand -hex 32`",
			name, optionName("token-key"))
	case strings.ContainsFunc(o.OpsToken, func(r rune) bool { return r < ' ' || r > '~' }):
		return fmt.Errorf("%s contains a character that an Authorization header cannot carry: "+
			"use only printable ASCII characters", name)
	}
	return nil
}

// minDifferentBytes is the minimum number of different bytes in a secret. It rejects secrets that repeat a few
// characters. It almost never rejects a random secret: one in 10^35 from `openssl rand -hex 32`, and one in two million
// from `openssl rand -hex 8`, which has the minimum length of the operators' token.
const minDifferentBytes = 5

// checkSecret rejects secrets that are easy to guess: short ones, ones that repeat a few characters, and ones that
// contain a word from an example. It accepts an empty secret, because requireAll reports it.
func checkSecret(flag, secret string, minBytes int) error {
	if secret == "" {
		return nil
	}
	name := optionName(flag)
	if len(secret) < minBytes {
		return fmt.Errorf("%s has %d bytes, want at least %d: "+
			"set a random value, for example from `openssl rand -hex 32`", name, len(secret), minBytes)
	}
	lower := strings.ToLower(secret)
	for _, word := range []string{"changeme", "change-me", "secret", "password", "default", "example"} {
		if strings.Contains(lower, word) {
			return fmt.Errorf("%s contains the word %q: "+
				"set a random value, for example from `openssl rand -hex 32`", name, word)
		}
	}
	different := map[byte]bool{}
	for _, b := range []byte(secret) {
		different[b] = true
	}
	if len(different) < minDifferentBytes {
		return fmt.Errorf("%s has %d different bytes, want at least %d: "+
			"set a random value, for example from `openssl rand -hex 32`", name, len(different), minDifferentBytes)
	}
	return nil
}

// optionName returns the variable and the flag of an option: "SHOP_HTTP_ADDR (--http-addr)". Each variable is named
// after its flag.
func optionName(flag string) string {
	return fmt.Sprintf("SHOP_%s (--%s)", strings.ToUpper(strings.ReplaceAll(flag, "-", "_")), flag)
}

// oneLine joins errors into an error of one line. It returns nil if all of errs are nil.
func oneLine(errs ...error) error {
	var texts []string
	for _, err := range errs {
		if err != nil {
			texts = append(texts, err.Error())
		}
	}
	if len(texts) == 0 {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}
