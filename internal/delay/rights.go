package delay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// CheckRights does once in Redis what a queue needs, with keys of its own, which it deletes afterwards. Its error says
// what Redis refuses, for instance because the user lacks a right, because the server is a replica, or because it is a
// node of a cluster whose URL names no other one. An error that Redis has not answered means that Redis is away.
func (q *Queue) CheckRights(ctx context.Context) error {
	if err := q.rdb.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("ping Redis: %w", err)
	}
	if err := q.checkMode(ctx); err != nil {
		return err
	}
	own, err := NewQueue(q.rdb, q.kind+".probe."+uuid.NewString(), 1)
	if err != nil {
		return err
	}
	defer own.deleteKeys(ctx)
	const id = "probe"
	if err := own.tryCommands(ctx, id); err != nil {
		return err
	}
	claim := func() (b Batch, err error) { return own.Claim(ctx, 0, 1, time.Minute) }
	var b Batch
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"schedule", func() error { return own.Schedule(ctx, In(id, 0)) }},
		{"claim", func() (err error) { b, err = claim(); return err }},
		{"renew", func() (err error) { _, err = own.Renew(ctx, &b, time.Minute); return err }},
		{"retry", func() (err error) { _, err = own.Retry(ctx, b, Requeue{ID: id, Err: "probe"}); return err }},
		{"claim", func() (err error) { b, err = claim(); return err }},
		{"bury", func() (err error) { _, err = own.Bury(ctx, b, Burial{ID: id, Err: "probe"}); return err }},
		{"list dead letters", func() (err error) { _, err = own.DeadLetters(ctx, 1); return err }},
		{"redrive", func() (err error) { _, err = own.Redrive(ctx, id); return err }},
		{"locate", func() (err error) { _, err = own.Locate(ctx, []string{id}); return err }},
		{"claim", func() (err error) { b, err = claim(); return err }},
		{"acknowledge", func() (err error) { _, err = own.Ack(ctx, b, id); return err }},
		{"count", func() (err error) { _, err = own.Depth(ctx); return err }},
		{"mark", func() error { return own.MarkIntact(ctx) }},
		{"read marks", func() (err error) { _, err = Intact(ctx, own); return err }},
	} {
		if err := step.do(); err != nil {
			return refusal("to "+step.name, err)
		}
	}
	return CheckChannel(ctx, q.rdb, q.channel())
}

// LogRights logs what CheckRights and CheckKeys find, so that the start of a process names it.
func (q *Queue) LogRights(ctx context.Context, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err := q.CheckRights(ctx)
	if err == nil {
		err = q.CheckKeys(ctx)
	}
	if err != nil && ctx.Err() == nil {
		log.Warn("the queue does not work with this Redis", "kind", q.kind, "error", err)
	}
}

// tryCommands sends the commands of the scripts one by one, because the error of a script does not say which command
// the user may not send. EVAL is among them because Redis may know the scripts already. If DEL is refused, no key is
// written, because it would stay.
func (q *Queue) tryCommands(ctx context.Context, id string) error {
	s := q.shards[0]
	if err := q.rdb.Del(ctx, s.due).Err(); err != nil {
		return refusal("the command DEL", err)
	}
	commands := [][]any{
		{"TYPE", s.due}, {"EVAL", "return 1", 1, s.due},
		{"TIME"}, {"ZADD", s.due, "LT", 1, id}, {"ZRANGE", s.due, 0, 0}, {"ZRANGEBYSCORE", s.due, 0, 1},
		{"ZSCORE", s.due, id}, {"ZMSCORE", s.due, id}, {"ZCARD", s.due}, {"ZCOUNT", s.due, 0, 1}, {"ZREM", s.due, id},
		{"HSET", s.attempts, id, 1}, {"HGET", s.attempts, id}, {"HMGET", s.attempts, id}, {"HDEL", s.attempts, id},
	}
	answers, _ := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, command := range commands {
			p.Do(ctx, command...)
		}
		return nil
	})
	for i, answer := range answers {
		if err := answer.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return refusal(fmt.Sprint("the command ", commands[i][0]), err)
		}
	}
	return nil
}

// refusal returns an error that says what Redis refuses, if the error is an answer of Redis.
func refusal(what string, err error) error {
	if errors.As(err, new(redis.Error)) {
		return fmt.Errorf("redis refuses %s: %w", what, err)
	}
	return fmt.Errorf("check whether Redis permits %s: %w", what, err)
}

// checkMode asks the server whether it is a node of a cluster.
func (q *Queue) checkMode(ctx context.Context) error {
	if _, isCluster := q.rdb.(*redis.ClusterClient); isCluster {
		return nil
	}
	info, err := q.rdb.InfoMap(ctx, "cluster").Result()
	if err == nil && info["Cluster"]["cluster_enabled"] == "1" {
		return errors.New("the Redis server is a node of a cluster: append the address of a node, which may be the same " +
			"one, to the Redis URL, as in redis://host:port?addr=host:port")
	}
	return nil // whatever else is wrong, the next command says it
}

// CheckChannel sends itself a message through a channel whose name begins with another one. Its error says which step
// fails.
func CheckChannel(ctx context.Context, rdb redis.UniversalClient, channel string) error {
	const limit = 2 * time.Second
	channel += ":probe"
	sub := rdb.Subscribe(ctx, channel)
	defer sub.Close()
	if _, err := sub.ReceiveTimeout(ctx, limit); err != nil {
		return fmt.Errorf("subscribe to %s: %w", channel, err)
	}
	if err := rdb.Publish(ctx, channel, "0").Err(); err != nil {
		return fmt.Errorf("publish to %s: %w", channel, err)
	}
	if _, err := sub.ReceiveTimeout(ctx, limit); err != nil {
		return fmt.Errorf("receive what was published to %s: %w", channel, err)
	}
	return nil
}

// deleteKeys deletes the keys of the queue, even if ctx has ended.
func (q *Queue) deleteKeys(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	for _, s := range q.shards {
		q.rdb.Del(ctx, s.due, s.leased, s.dead, s.attempts, s.errs, s.marker)
	}
}

// CheckKeys returns an error that names a key of the queue whose type is wrong, because something else has written it.
func (q *Queue) CheckKeys(ctx context.Context) error {
	type key struct{ name, want string }
	var keys []key
	for _, s := range q.shards {
		keys = append(keys, key{s.due, "zset"}, key{s.leased, "zset"}, key{s.dead, "zset"}, key{s.attempts, "hash"},
			key{s.errs, "hash"}, key{s.marker, "string"})
	}
	found := make([]*redis.StatusCmd, len(keys))
	if _, err := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, k := range keys {
			found[i] = p.Type(ctx, k.name)
		}
		return nil
	}); err != nil {
		return fmt.Errorf("read the types of the keys of %s: %w", q.kind, err)
	}
	var wrong []string
	for i, k := range keys {
		if kind := found[i].Val(); kind != k.want && kind != "none" {
			wrong = append(wrong, fmt.Sprintf("%s is a %s, want a %s", k.name, kind, k.want))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("something else has written keys of the queue; delete them, and the next sweep adds their tasks: %s",
		strings.Join(wrong, "; "))
}
