package app

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/rest"
)

// Database holds the options of the connections to PostgreSQL.
type Database struct {
	DatabaseURL     string `name:"database-url" placeholder:"URL" help:"The URL of PostgreSQL: postgres://user:password@host:port/database."`
	DatabaseURLFile string `name:"database-url-file" placeholder:"FILE" help:"The file with the database URL, instead of --database-url."`
	DatabaseConns   int    `name:"database-conns" default:"20" help:"The maximum number of connections from this process to PostgreSQL."`
}

// Check returns an error that names the options with wrong values.
func (o Database) Check() error {
	var errs []error
	if o.DatabaseConns < 2 { // a sweep holds one for its lock, and needs another for its statements; see also New
		errs = append(errs, fmt.Errorf("%s is %d, want at least 2", OptionName("database-conns"), o.DatabaseConns))
	}
	if o.DatabaseURL != "" {
		if err := postgres.CheckURL(o.DatabaseURL); err != nil {
			errs = append(errs, fmt.Errorf("%s is wrong, want postgres://user:password@host:port/database: %w",
				OptionName("database-url"), err))
		}
	}
	return JoinErrors(errs...)
}

// Redis holds the options of the connections to Redis, and of the queues in it.
type Redis struct {
	RedisURL     string `name:"redis-url" placeholder:"URL" help:"The URL of Redis: redis://host:port/db. For a cluster: redis://host:port?addr=host:port&addr=host:port. For Sentinels: redis://host:port/db?master_name=name&addr=host:port&addr=host:port."`
	RedisURLFile string `name:"redis-url-file" placeholder:"FILE" help:"The file with the Redis URL, instead of --redis-url."`
	QueueShards  int    `name:"queue-shards" default:"1" help:"The number of shards of the queue, spread over a cluster's slots. Use the same number for every process."`
}

// Check returns an error that names the options with wrong values.
func (o Redis) Check() error {
	var errs []error
	if o.QueueShards < 1 || o.QueueShards > delay.MaxShards {
		errs = append(errs, fmt.Errorf("%s is %d, want 1 to %d",
			OptionName("queue-shards"), o.QueueShards, delay.MaxShards))
	}
	if o.RedisURL != "" {
		if err := delay.CheckURL(o.RedisURL); err != nil {
			errs = append(errs, fmt.Errorf("%s is wrong: %w", OptionName("redis-url"), err))
		}
	}
	return JoinErrors(errs...)
}

// Reconcile holds the options of the reconciler.
type Reconcile struct {
	ReconcileSchedule  string        `name:"reconcile-schedule" default:"@every 30s" help:"The schedule of the sweeps, which compare the pending rows with Redis: a cron expression or @every."`
	ReconcileLookahead time.Duration `name:"reconcile-lookahead" default:"2m" help:"The sweeps compare the rows that are due within this time. At least twice the interval of @every. With a cron expression, sweeps are at most half of this time apart."`
}

// Check returns an error that names the options with wrong values.
func (o Reconcile) Check() error {
	if o.ReconcileLookahead <= 0 {
		return fmt.Errorf("%s is %v, want at least 2s, and at least twice the schedule's interval",
			OptionName("reconcile-lookahead"), o.ReconcileLookahead)
	}
	if err := o.reconcileConfig().Check(); err != nil {
		return fmt.Errorf("%s or %s is wrong: %w",
			OptionName("reconcile-schedule"), OptionName("reconcile-lookahead"), err)
	}
	return nil
}

func (o Reconcile) reconcileConfig() reconcile.Config {
	return reconcile.Config{Schedule: o.ReconcileSchedule, Lookahead: o.ReconcileLookahead}
}

var logLevels = []string{"debug", "info", "warn", "error"} // the values of the option --log-level

// Log holds the option of the log.
type Log struct {
	LogLevel string `name:"log-level" default:"info" help:"The lowest level to log: debug, info, warn or error."`
}

// Check returns an error that names the option if its value is wrong. The parser does not check the values of options,
// because it reports only the first wrong one.
func (o Log) Check() error {
	if slices.Contains(logLevels, o.LogLevel) {
		return nil
	}
	return fmt.Errorf("%s is %q, want one of %s", OptionName("log-level"), o.LogLevel, strings.Join(logLevels, ", "))
}

var roles = []string{API, Relay, Worker, Reconciler} // the values of the option --roles

// Serve holds the options of a process that serves, except for those of its parts. Addresses and secrets have no
// defaults: production must set them.
type Serve struct {
	HTTPAddr  string        `name:"http-addr" placeholder:"HOST:PORT" help:"The address to listen on. Without the role api, only health and metrics are served there."`
	PublicURL string        `name:"public-url" placeholder:"URL" help:"The URL of the site for browsers, if a proxy before the service changes the Host, for example https://shop.example."`
	Roles     []string      `name:"roles" default:"api,relay,worker,reconciler" help:"The roles of this process: any of api, relay, worker, reconciler."`
	Drain     time.Duration `name:"drain" default:"5s" help:"The time that a process continues to serve after SIGTERM. Meanwhile /readyz answers 503, so that the load balancer removes the process."`

	Tool
}

// Has reports whether the process has a role.
func (o *Serve) Has(role string) bool { return slices.Contains(o.Roles, role) }

// Check returns one error that names all options with wrong values.
func (o *Serve) Check() error {
	errs := []error{
		RequireOptions(map[string]string{"http-addr": o.HTTPAddr}), o.Tool.Check(),
		CheckHostPort("http-addr", o.HTTPAddr),
	}
	if _, err := rest.SameOrigin(o.PublicURL); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w; want for example https://shop.example", OptionName("public-url"), err))
	}
	if len(o.Roles) == 0 {
		errs = append(errs, fmt.Errorf("%s is empty, want at least one of %s",
			OptionName("roles"), strings.Join(roles, ", ")))
	}
	for _, role := range o.Roles {
		if !slices.Contains(roles, role) {
			errs = append(errs, fmt.Errorf("%s contains %q, want only %s",
				OptionName("roles"), role, strings.Join(roles, ", ")))
		}
	}
	if o.Drain < 0 || o.Drain > 5*time.Minute {
		errs = append(errs, fmt.Errorf("%s is %v, want 0s to 5m", OptionName("drain"), o.Drain))
	}
	return JoinErrors(errs...)
}

// Config returns the configuration of the process.
func (o *Serve) Config(program Program) Config {
	cfg := o.Tool.Config(program)
	cfg.Roles, cfg.Drain, cfg.PublicURL = o.Roles, o.Drain, o.PublicURL
	return cfg
}
