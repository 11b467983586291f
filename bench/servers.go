package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // registers the driver pgx
	"github.com/redis/go-redis/v9"
	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/mem"
	"github.com/shirou/gopsutil/v4/process"
	"gorm.io/gorm"

	"example.com/shop/bench/contender"
	"example.com/shop/bench/rabbit"
	"example.com/shop/internal/devstack"
	"example.com/shop/internal/order"
	"example.com/shop/internal/postgres"
	"example.com/shop/migrations"
)

// given are the URLs of servers that the caller provides. The benchmark starts the others.
type given struct{ database, redis string }

// servers are the servers of a run. They hold nothing but what the benchmark writes.
type servers struct {
	dir         string
	databaseURL string
	redisURL    string
	db          *sql.DB
	gorm        *gorm.DB
	store       *order.Store // for the limits and the invariants
	redis       *redis.Client
	postgres    *devstack.Postgres // nil: given
	cache       *devstack.Redis    // nil: given
	rabbit      *rabbit.Server     // nil: RabbitMQ is not installed
	pids        map[string]int32   // of the servers that the benchmark has started
	stops       []func() error     // in the order of the starts
	otherTables string             // the ids of tables that are not a contender's own, separated by commas

	keyspaceEvents string // the value of Redis's setting notify-keyspace-events before the run
}

// startServers starts the servers that contenders need, or connects to the given ones. In a given PostgreSQL it
// creates a database of its own.
func startServers(ctx context.Context, g given, contenders []contender.Info) (*servers, error) {
	dir, err := devstack.TempDir()
	if err != nil {
		return nil, err
	}
	s := &servers{dir: dir, pids: map[string]int32{}}
	s.stops = append(s.stops, func() error { return os.RemoveAll(dir) })
	err = s.startPostgres(ctx, g)
	if err == nil {
		err = s.startRedis(ctx, g)
	}
	if err == nil && slices.ContainsFunc(contenders, needsRabbit) {
		err = s.startRabbit(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// stop stops everything that was started, the last first.
func (s *servers) stop() error {
	var errs []error
	for _, stop := range slices.Backward(s.stops) {
		errs = append(errs, stop())
	}
	return errors.Join(errs...)
}

// subdirectory makes a directory for the files of a server.
func (s *servers) subdirectory(name string) (string, error) {
	dir := filepath.Join(s.dir, name)
	return dir, os.Mkdir(dir, 0o755)
}

// postgresSettings are the settings of PostgreSQL that differ from its defaults. It syncs each commit to disk, as by
// default. It keeps the time of each commit, which is when an order is really cancelled.
var postgresSettings = map[string]string{
	"max_connections": "200", "shared_buffers": "512MB", "max_wal_size": "8GB", "track_commit_timestamp": "on",
}

func (s *servers) startPostgres(ctx context.Context, g given) error {
	if s.databaseURL = g.database; g.database == "" {
		dir, err := s.subdirectory("postgres")
		if err != nil {
			return err
		}
		server, err := devstack.StartPostgres(ctx, dir, postgresSettings)
		if err != nil {
			return err
		}
		s.stops = append(s.stops, server.Stop)
		s.postgres, s.databaseURL, s.pids["PostgreSQL"] = server, server.URL(), int32(server.Pid())
	}
	if err := s.createDatabase(ctx); err != nil {
		return fmt.Errorf("PostgreSQL: %w", err)
	}
	if _, err := migrations.Up(ctx, s.db); err != nil {
		return err
	}
	// The outbox belongs to the shop's own way.
	const tables = `SELECT string_agg(oid::text, ',') FROM pg_class WHERE relkind = 'r' AND relname <> 'outbox'`
	if err := s.db.QueryRowContext(ctx, tables).Scan(&s.otherTables); err != nil {
		return fmt.Errorf("PostgreSQL: %w", err)
	}
	var setting string
	if err := s.db.QueryRowContext(ctx, `SHOW track_commit_timestamp`).Scan(&setting); err != nil {
		return fmt.Errorf("PostgreSQL: %w", err)
	}
	if setting != "on" {
		return errors.New("PostgreSQL: track_commit_timestamp is off, want on: the benchmark reads the times of " +
			"commits; set it in postgresql.conf and restart the server")
	}
	return nil
}

// createDatabase creates a database of the benchmark's own, connects to it, and changes databaseURL to its address.
func (s *servers) createDatabase(ctx context.Context) error {
	address, err := url.Parse(s.databaseURL)
	if err != nil {
		return errors.New("its URL is not valid: want postgres://user:password@host:port/database")
	}
	server, err := sql.Open("pgx", address.String())
	if err != nil {
		return err
	}
	s.stops = append(s.stops, server.Close)
	name := "bench_" + strings.ToLower(rand.Text())
	if _, err := server.ExecContext(ctx, "CREATE DATABASE "+name); err != nil {
		return err
	}
	s.stops = append(s.stops, func() error {
		_, err := server.ExecContext(context.WithoutCancel(ctx), "DROP DATABASE "+name+" WITH (FORCE)")
		return err
	})
	address.Path = "/" + name
	s.databaseURL = address.String()
	if s.db, err = sql.Open("pgx", s.databaseURL); err != nil {
		return err
	}
	s.stops = append(s.stops, s.db.Close)
	gdb, err := postgres.Open(ctx, s.databaseURL, "bench", 4, postgres.IndexPlans, nil)
	if err != nil {
		return err
	}
	pool, err := gdb.DB()
	if err != nil {
		return err
	}
	s.stops = append(s.stops, pool.Close)
	s.gorm, s.store = gdb, order.NewStore(gdb)
	return nil
}

// redisSettings are the settings of Redis that differ from devstack's: it appends each write to a file and syncs the
// file every second, as its documentation recommends for data that matters.
var redisSettings = []string{"--appendonly", "yes", "--appendfsync", "everysec"}

func (s *servers) startRedis(ctx context.Context, g given) (err error) {
	if s.redisURL = g.redis; g.redis == "" {
		dir, err := s.subdirectory("redis")
		if err != nil {
			return err
		}
		server, err := devstack.StartRedis(ctx, dir, redisSettings...)
		if err != nil {
			return err
		}
		s.stops = append(s.stops, server.Stop)
		s.cache, s.redisURL, s.pids["Redis"] = server, server.URL(), int32(server.Pid())
	}
	redisOptions, err := redis.ParseURL(s.redisURL)
	if err != nil {
		return fmt.Errorf("the URL of Redis: %w", err)
	}
	redisOptions.ReadTimeout = time.Minute // deleting millions of keys takes seconds
	s.redis = redis.NewClient(redisOptions)
	s.stops = append(s.stops, s.redis.Close)
	keys, err := s.redis.DBSize(ctx).Result()
	switch {
	case err != nil:
		return fmt.Errorf("connect to Redis: %w", err)
	case keys > 0:
		return fmt.Errorf("the database of Redis has %d keys, want an empty one: the benchmark deletes all keys", keys)
	}
	values, err := s.redis.ConfigGet(ctx, keyspaceEvents).Result()
	if err != nil {
		return fmt.Errorf("read a setting of Redis: %w", err)
	}
	s.keyspaceEvents = values[keyspaceEvents]
	if g.redis != "" {
		s.stops = append(s.stops, func() error { return s.cleanRedis(context.WithoutCancel(ctx)) })
	}
	return nil
}

// keyspaceEvents is the setting of Redis that one of the contenders changes.
const keyspaceEvents = "notify-keyspace-events"

// startRabbit starts RabbitMQ, if it is installed.
func (s *servers) startRabbit(ctx context.Context) error {
	dir, err := s.subdirectory("rabbitmq")
	if err != nil {
		return err
	}
	s.rabbit, err = rabbit.Start(ctx, dir)
	if errors.Is(err, rabbit.ErrMissing) {
		return nil
	}
	if err != nil {
		return err
	}
	s.stops = append(s.stops, s.rabbit.Stop)
	s.pids["RabbitMQ"] = int32(s.rabbit.Pid())
	return nil
}

func needsRabbit(info contender.Info) bool { return slices.Contains(info.Servers, contender.Rabbit) }

// missing returns why the servers that a contender needs are not there, or "".
func (s *servers) missing(info contender.Info) string {
	if s.rabbit == nil && needsRabbit(info) {
		return rabbit.ErrMissing.Error()
	}
	return ""
}

func (s *servers) rabbitURL() string {
	if s.rabbit == nil {
		return ""
	}
	return s.rabbit.URL()
}

// cleanRedis removes all keys of the benchmark's database, and the setting that one of the contenders changes.
func (s *servers) cleanRedis(ctx context.Context) error {
	if err := s.redis.FlushDB(ctx).Err(); err != nil {
		return err
	}
	return s.redis.ConfigSet(ctx, keyspaceEvents, s.keyspaceEvents).Err()
}

// wipe deletes what a contender has stored beside the table, as if the server's disk were lost.
func (s *servers) wipe(ctx context.Context, info contender.Info) error {
	if needsRabbit(info) {
		err := s.rabbit.Wipe(ctx)
		s.pids["RabbitMQ"] = int32(s.rabbit.Pid())
		return err
	}
	return s.redis.FlushDB(ctx).Err()
}

// stopStore stops the store of a contender for a time. The store keeps its data.
func (s *servers) stopStore(ctx context.Context, info contender.Info, away time.Duration) error {
	if needsRabbit(info) {
		return s.restart(ctx, "RabbitMQ", s.rabbit, s.rabbit.Kill, away)
	}
	return s.restart(ctx, "Redis", s.cache, s.cache.Stop, away)
}

// restartPostgres kills PostgreSQL, and starts it again after a time.
func (s *servers) restartPostgres(ctx context.Context, away time.Duration) error {
	return s.restart(ctx, "PostgreSQL", s.postgres, s.postgres.Stop, away)
}

// restart stops a server, and starts it again after a time.
func (s *servers) restart(ctx context.Context, name string, server interface {
	Restart(ctx context.Context) error
	Pid() int
}, stop func() error, away time.Duration) error {
	if err := stop(); err != nil {
		return err
	}
	contender.Sleep(ctx, away)
	err := server.Restart(ctx)
	s.pids[name] = int32(server.Pid())
	return err
}

// usage is what the processes of a run use.
type usage struct {
	seconds      map[string]processorTimes // by the name of the program
	redisMemory  int64                     // bytes
	rabbitMemory int64                     // bytes
	tables       int64                     // bytes of the contender's own tables in PostgreSQL
}

// usage reads the counters of the servers, and of the process of a contender unless w is nil.
func (s *servers) usage(ctx context.Context, w *worker) (u usage, err error) {
	u.seconds = map[string]processorTimes{}
	pids := maps.Clone(s.pids)
	if w != nil {
		pids["process"] = w.pid()
	}
	for name, pid := range pids {
		if u.seconds[name], err = readProcessorTimes(ctx, pid); err != nil {
			return u, fmt.Errorf("processor time of %s: %w", name, err)
		}
	}
	info, err := s.redis.Info(ctx, "memory").Result()
	if err != nil {
		return u, err
	}
	u.redisMemory = field(info, "used_memory")
	if s.rabbit != nil {
		if u.rabbitMemory, err = residentMemory(ctx, s.pids["RabbitMQ"]); err != nil {
			return u, err
		}
	}
	err = s.db.QueryRowContext(ctx, `
		SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
		WHERE relkind = 'r' AND oid <> ALL (string_to_array($1, ',')::oid[])`, s.otherTables).Scan(&u.tables)
	return u, err
}

// field returns the integer value of a field in the reply to INFO.
func field(info, name string) (n int64) {
	if _, value, found := strings.Cut(info, "\n"+name+":"); found {
		_, _ = fmt.Sscan(value, &n) // 0 if it is no integer
	}
	return n
}

// processorTimes has the seconds of processor time that a process and each of its children have used, by their ids.
type processorTimes map[int32]float64

func readProcessorTimes(ctx context.Context, pid int32) (processorTimes, error) {
	p, err := process.NewProcessWithContext(ctx, pid)
	if err != nil {
		return nil, err
	}
	times := processorTimes{}
	all := []*process.Process{p}
	if children, err := p.ChildrenWithContext(ctx); err == nil { // it is an error to have no children
		all = append(all, children...)
	}
	for _, p := range all {
		if t, err := p.TimesWithContext(ctx); err == nil { // a child may have ended
			times[p.Pid] = t.User + t.System
		}
	}
	return times, nil
}

// since returns the seconds since an earlier reading. It leaves out processes that have ended.
func (t processorTimes) since(before processorTimes) (seconds float64) {
	for pid, s := range t {
		seconds += s - before[pid]
	}
	return seconds
}

func residentMemory(ctx context.Context, pid int32) (int64, error) {
	p, err := process.NewProcessWithContext(ctx, pid)
	if err != nil {
		return 0, err
	}
	m, err := p.MemoryInfoWithContext(ctx)
	if err != nil {
		return 0, err
	}
	return int64(m.RSS), nil
}

var versionNumber = regexp.MustCompile(`\d+(\.\d+)+`)

// describe returns lines about the machine, and about the versions and the settings of the servers.
func (s *servers) describe(ctx context.Context) (lines []string, err error) {
	processors, err := cpu.InfoWithContext(ctx)
	if err != nil {
		return nil, err
	}
	memory, err := mem.VirtualMemoryWithContext(ctx)
	if err != nil {
		return nil, err
	}
	model := "unknown"
	if len(processors) > 0 {
		model = processors[0].ModelName
	}
	var database string
	if err := s.db.QueryRowContext(ctx, `SHOW server_version`).Scan(&database); err != nil {
		return nil, err
	}
	info, err := s.redis.Info(ctx, "server").Result()
	if err != nil {
		return nil, err
	}
	_, cache, _ := strings.Cut(info, "redis_version:")
	lines = []string{
		fmt.Sprintf("Machine: %d cores (%s), %d GiB of memory, %s/%s, shared by all processes of the benchmark",
			runtime.NumCPU(), strings.TrimSpace(model), memory.Total>>30, runtime.GOOS, runtime.GOARCH),
		"Go: " + strings.TrimPrefix(runtime.Version(), "go"),
		"PostgreSQL: " + versionNumber.FindString(database) + "; " + s.settingsOf("PostgreSQL", settings(postgresSettings)),
		"Redis: " + versionNumber.FindString(cache) + "; " + s.settingsOf("Redis", strings.Join(redisSettings, " ")),
	}
	if s.rabbit != nil {
		lines = append(lines, "RabbitMQ: "+s.rabbit.Version(ctx))
	}
	return append(lines, "Modules: "+strings.Join(modules(), ", ")), nil
}

// settingsOf returns the settings of a server, which the benchmark knows only if it has started the server.
func (s *servers) settingsOf(server, settings string) string {
	if s.pids[server] == 0 {
		return "given; settings unknown"
	}
	return settings
}

// modules returns the versions of the modules that contenders and clients come from.
func modules() (versions []string) {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	for _, name := range []string{
		"hibiken/asynq", "riverqueue/river", "dbos-inc/dbos-transact-golang", "vgarvardt/gue/v5", "acaloiaro/neoq",
		"rabbitmq/amqp091-go", "redis/go-redis/v9", "jackc/pgx/v5",
	} {
		for _, module := range build.Deps {
			if module.Path == "github.com/"+name {
				versions = append(versions, name+" "+module.Version)
			}
		}
	}
	return versions
}

func settings(values map[string]string) string {
	var all []string
	for name, value := range values {
		all = append(all, name+"="+value)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
