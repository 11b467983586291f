package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
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

type databaseOptions struct {
	DatabaseURL   string `name:"database-url" env:"SHOP_DATABASE_URL" placeholder:"URL" help:"PostgreSQL: postgres://user:password@host:port/database."`
	DatabaseConns int    `name:"database-conns" env:"SHOP_DATABASE_CONNS" default:"20" help:"The most connections that this process opens to PostgreSQL."`
}

func (o databaseOptions) validate() error {
	if o.DatabaseConns < 2 { // a sweep holds one for its lock
		return fmt.Errorf("%s is %d, want at least 2", optionName("database-conns"), o.DatabaseConns)
	}
	return nil
}

type redisOptions struct {
	RedisURL    string `name:"redis-url" env:"SHOP_REDIS_URL" placeholder:"URL" help:"Redis: redis://host:port/db; a cluster: redis://host:port?addr=host:port&addr=host:port."`
	QueueShards int    `name:"queue-shards" env:"SHOP_QUEUE_SHARDS" default:"1" help:"Parts of the queue, spread over a cluster's slots; the same for every process."`
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
	OpsToken     string        `name:"ops-token" env:"SHOP_OPS_TOKEN" placeholder:"SECRET" help:"Opens the operators' API; at least 16 bytes."`
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
		faults = append(faults, checkSecret("token-key", o.TokenKey, 32), checkSecret("ops-token", o.OpsToken, 16))
	}
	faults = append([]error{requireAll(required), o.databaseOptions.validate(), o.redisOptions.validate()}, faults...)
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

// checkSecret refuses secrets that someone could guess: short ones, one character repeated and the words
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
	if strings.Count(secret, secret[:1]) == len(secret) {
		return fmt.Errorf("%s repeats one character: set a random value, such as from `openssl rand -hex 32`", name)
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
