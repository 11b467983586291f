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

// commands is the command line. Every option is a flag and an environment variable; a test compares
// the README's table with it.
type commands struct {
	Demo      demoCommand      `cmd:"" help:"Run everything in one process, on a private PostgreSQL and Redis that are gone when it stops."`
	Serve     serveCommand     `cmd:"" help:"Run the service, or some of its roles."`
	Migrate   migrateCommand   `cmd:"" help:"Bring the database's schema up to date."`
	Reconcile reconcileCommand `cmd:"" help:"Compare the orders with Redis once, repair, and print the report."`
	Doctor    doctorCommand    `cmd:"" help:"Check connections, schema version and the invariants."`
	Health    healthCommand    `cmd:"" help:"Ask the process that listens at an address whether it is ready."`
	Version   versionCommand   `cmd:"" help:"Print the version."`
}

// Options that hold secrets, passwords in addresses among them, are in pairs: the secret itself, and the name of a
// file that holds it. See readSecrets.

type databaseOptions struct {
	DatabaseURL     string `name:"database-url" env:"SHOP_DATABASE_URL" placeholder:"URL" help:"PostgreSQL: postgres://user:password@host:port/database."`
	DatabaseURLFile string `name:"database-url-file" env:"SHOP_DATABASE_URL_FILE" placeholder:"FILE" help:"File that holds the database URL, instead of --database-url."`
	DatabaseConns   int    `name:"database-conns" env:"SHOP_DATABASE_CONNS" default:"20" help:"The most connections that this process opens to PostgreSQL."`
}

func (o databaseOptions) validate() error {
	if o.DatabaseConns < 2 { // a sweep holds one for its lock
		return fmt.Errorf("%s is %d, want at least 2", optionName("database-conns"), o.DatabaseConns)
	}
	return nil
}

type redisOptions struct {
	RedisURL     string `name:"redis-url" env:"SHOP_REDIS_URL" placeholder:"URL" help:"Redis: redis://host:port/db; a cluster: redis://host:port?addr=host:port&addr=host:port."`
	RedisURLFile string `name:"redis-url-file" env:"SHOP_REDIS_URL_FILE" placeholder:"FILE" help:"File that holds the Redis URL, instead of --redis-url."`
	QueueShards  int    `name:"queue-shards" env:"SHOP_QUEUE_SHARDS" default:"1" help:"Parts of the queue, spread over a cluster's slots; the same for every process."`
}

func (o redisOptions) validate() error {
	if o.QueueShards < 1 {
		return fmt.Errorf("%s is %d, want at least 1", optionName("queue-shards"), o.QueueShards)
	}
	return nil
}

type reconcileOptions struct {
	ReconcileSchedule  string        `name:"reconcile-schedule" env:"SHOP_RECONCILE_SCHEDULE" default:"@every 30s" help:"When to compare the orders with Redis: a cron expression or @every."`
	ReconcileLookahead time.Duration `name:"reconcile-lookahead" env:"SHOP_RECONCILE_LOOKAHEAD" default:"2m" help:"Compare the orders that are due within this time; at least twice the schedule's interval."`
}

func (o reconcileOptions) validate() error {
	if o.ReconcileLookahead <= 0 {
		return fmt.Errorf("%s is %v, want at least twice the schedule's interval",
			optionName("reconcile-lookahead"), o.ReconcileLookahead)
	}
	return nil
}

type logOptions struct {
	LogLevel string `name:"log-level" env:"SHOP_LOG_LEVEL" enum:"debug,info,warn,error" default:"info" help:"debug, info, warn or error."`
}

// serveOptions are what a serving process needs to know. There are no defaults for addresses and
// secrets: production names them.
type serveOptions struct {
	HTTPAddr     string        `name:"http-addr" env:"SHOP_HTTP_ADDR" placeholder:"HOST:PORT" help:"Address to listen on: the API, or without that role health and metrics only."`
	OrderTimeout time.Duration `name:"order-timeout" env:"SHOP_ORDER_TIMEOUT" default:"30m" help:"How long an order may stay unpaid."`
	Roles        []string      `name:"roles" env:"SHOP_ROLES" enum:"api,relay,worker,reconciler" default:"api,relay,worker,reconciler" help:"What this process does, any of api, relay, worker, reconciler."`
	TokenKey     string        `name:"token-key" env:"SHOP_TOKEN_KEY" placeholder:"SECRET" help:"Signs the customers' tokens; at least 32 bytes."`
	TokenKeyFile string        `name:"token-key-file" env:"SHOP_TOKEN_KEY_FILE" placeholder:"FILE" help:"File that holds the token key, instead of --token-key."`
	OpsToken     string        `name:"ops-token" env:"SHOP_OPS_TOKEN" placeholder:"SECRET" help:"Opens the operators' API; at least 16 bytes."`
	OpsTokenFile string        `name:"ops-token-file" env:"SHOP_OPS_TOKEN_FILE" placeholder:"FILE" help:"File that holds the operators' token, instead of --ops-token."`
	Drain        time.Duration `name:"drain" env:"SHOP_DRAIN" default:"5s" help:"How long a process that is told to stop still serves while /readyz answers 503, so that a load balancer takes it out."`

	databaseOptions
	redisOptions
	reconcileOptions
	logOptions
}

func (o *serveOptions) has(role string) bool { return slices.Contains(o.Roles, role) }

// validate names everything that keeps the options from being served.
func (o *serveOptions) validate() error {
	required := map[string]string{"http-addr": o.HTTPAddr, "database-url": o.DatabaseURL, "redis-url": o.RedisURL}
	var faults []error
	if o.has("api") {
		required["token-key"], required["ops-token"] = o.TokenKey, o.OpsToken
		faults = append(faults,
			checkSecret("token-key", o.TokenKey, 32), checkSecret("ops-token", o.OpsToken, 16), o.checkOpsToken())
	}
	faults = append([]error{
		requireAll(required), o.databaseOptions.validate(), o.redisOptions.validate(), o.reconcileOptions.validate(),
	}, faults...)
	if len(o.Roles) == 0 {
		faults = append(faults, fmt.Errorf("%s names no role, want any of api, relay, worker, reconciler", optionName("roles")))
	}
	if _, _, err := net.SplitHostPort(o.HTTPAddr); o.HTTPAddr != "" && err != nil {
		faults = append(faults, fmt.Errorf("%s is no host:port: %w", optionName("http-addr"), err))
	}
	if o.OrderTimeout < time.Second || o.OrderTimeout > 30*24*time.Hour {
		faults = append(faults, fmt.Errorf("%s is %v, want 1s to 720h", optionName("order-timeout"), o.OrderTimeout))
	}
	if o.Drain < 0 || o.Drain > 5*time.Minute {
		faults = append(faults, fmt.Errorf("%s is %v, want 0s to 5m", optionName("drain"), o.Drain))
	}
	return oneLine(faults...)
}

// readSecrets sets a command's secrets from their files, and trims them. An option NAME is a secret if the command has an
// option NAME-file. Blanks at both ends are not part of a secret: editors, `echo` and tools that mount secrets add a
// newline, which an Authorization header cannot carry.
func readSecrets(command *kong.Node) error {
	flags := map[string]*kong.Flag{}
	for _, flag := range command.Flags {
		flags[flag.Name] = flag
	}
	var faults []error
	for _, file := range command.Flags {
		name, isFile := strings.CutSuffix(file.Name, "-file")
		if secret := flags[name]; isFile && secret != nil {
			value, err := readSecret(name, secret.Target.String(), file.Target.String())
			secret.Target.SetString(value)
			faults = append(faults, err)
		}
	}
	return oneLine(faults...)
}

// readSecret returns a secret that is given as value or in a file.
func readSecret(flag, value, file string) (string, error) {
	value = strings.TrimSpace(value)
	if file == "" {
		return value, nil
	}
	name, fileName := optionName(flag), optionName(flag+"-file")
	if value != "" {
		return "", fmt.Errorf("%s and %s are given: want one, not both", name, fileName)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", fileName, err)
	}
	if value = strings.TrimSpace(string(content)); value == "" {
		return "", fmt.Errorf("%s: %s is empty, want the value of %s in it", fileName, file, name)
	}
	return value, nil
}

// requireAll names the options, given by flag name, that have no value.
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

// checkOpsToken refuses an operators' token that is the token key too, or that no request could show.
func (o *serveOptions) checkOpsToken() error {
	name := optionName("ops-token")
	switch {
	case o.OpsToken == "":
		return nil
	case o.OpsToken == o.TokenKey:
		// Operators send their token over the network, and a reader of the key can sign any customer's token.
		return fmt.Errorf("%s is the same as %s: set two random values, such as from `openssl rand -hex 32`",
			name, optionName("token-key"))
	case strings.ContainsFunc(o.OpsToken, func(r rune) bool { return r < ' ' || r > '~' }):
		return fmt.Errorf("%s has a character that an Authorization header cannot carry: want printable ASCII characters",
			name)
	}
	return nil
}

// leastVariety is how many different bytes a secret has at least. A secret of a few characters that are repeated has
// fewer. `openssl rand -hex 32` has fewer once in 10^35 times, and the shortest secret that is long enough, from
// `openssl rand -hex 8`, once in two million.
const leastVariety = 5

// checkSecret refuses secrets that someone could guess: short ones, a few characters repeated and the words
// that examples use. That there is one at all is requireAll's to check.
func checkSecret(flag, secret string, least int) error {
	if secret == "" {
		return nil
	}
	name := optionName(flag)
	if len(secret) < least {
		return fmt.Errorf("%s has %d bytes, want at least %d: try `openssl rand -hex 32`", name, len(secret), least)
	}
	lower := strings.ToLower(secret)
	for _, word := range []string{"changeme", "change-me", "secret", "password", "default", "example"} {
		if strings.Contains(lower, word) {
			return fmt.Errorf("%s holds the word %q: set a random value, such as from `openssl rand -hex 32`", name, word)
		}
	}
	different := map[byte]bool{}
	for _, b := range []byte(secret) {
		different[b] = true
	}
	if len(different) < leastVariety {
		return fmt.Errorf("%s has %d different bytes, want at least %d: "+
			"set a random value, such as from `openssl rand -hex 32`", name, len(different), leastVariety)
	}
	return nil
}

// optionName names an option as both of what it can be set by; every variable follows this rule.
func optionName(flag string) string {
	return fmt.Sprintf("SHOP_%s (--%s)", strings.ToUpper(strings.ReplaceAll(flag, "-", "_")), flag)
}

// oneLine joins errors for a message of one line, nil if there are none.
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
