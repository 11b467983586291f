package delay

import (
	"context"
	"embed"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/*.lua
var luaFiles embed.FS

// load returns a script with the prelude before it. The client first sends only the script's hash. It sends the text
// to a Redis that does not know the hash, because it is new, was restarted or has flushed its scripts.
func load(name string) *redis.Script {
	read := func(name string) string {
		text, err := luaFiles.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err) // the files are embedded at build time
		}
		return string(text)
	}
	return redis.NewScript(read("prelude") + "\n" + read(name))
}

// maxIDs is the largest number of ids in one call of a script, because Redis serves nobody else while a script runs,
// and because unpack in Lua fails on about 8,000 ids and more.
const maxIDs = 1000

// call holds the arguments for one run of a script, on keys of one shard.
type call struct {
	keys []string
	args []any
}

// runEach runs a script once for each call, and returns one reply for each call. It takes one round trip to each node,
// and a second one to the nodes that do not know the script yet. After an error some of the calls may have run: each
// reply has its own error.
func (q *Queue) runEach(ctx context.Context, script *redis.Script, calls []call) ([]*redis.Cmd, error) {
	replies := make([]*redis.Cmd, len(calls))
	if len(calls) == 1 {
		replies[0] = script.Run(ctx, q.rdb, calls[0].keys, calls[0].args...)
		return replies, replies[0].Err()
	}
	_, _ = q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error { // each reply has its own error
		for i, c := range calls {
			replies[i] = script.EvalSha(ctx, p, c.keys, c.args...)
		}
		return nil
	})
	var unknown []int // the indexes of calls to nodes that do not know the script yet
	for i := range replies {
		if redis.HasErrorPrefix(replies[i].Err(), "NOSCRIPT") {
			unknown = append(unknown, i)
		} else if replies[i].Err() != nil {
			return replies, replies[i].Err()
		}
	}
	if len(unknown) == 0 {
		return replies, nil
	}
	_, err := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, i := range unknown {
			replies[i] = script.Eval(ctx, p, calls[i].keys, calls[i].args...)
		}
		return nil
	})
	return replies, err
}

// idGroup has the ids of one shard, as indexes in the list that a caller passed.
type idGroup struct {
	shard
	indexes []int
}

// groupByShard groups ids by their shards, at most maxIDs in each group.
func (q *Queue) groupByShard(ids []string) (groups []idGroup) {
	indexes := make(map[int][]int) // by shard: a call mostly has the ids of few of them
	for i, id := range ids {
		n := q.shardOf(id)
		indexes[n] = append(indexes[n], i)
	}
	for _, n := range slices.Sorted(maps.Keys(indexes)) {
		for chunk := range slices.Chunk(indexes[n], maxIDs) {
			groups = append(groups, idGroup{q.shards[n], chunk})
		}
	}
	return groups
}

// integers reads a reply that must consist of want integers.
func integers(reply *redis.Cmd, want int) ([]int64, error) {
	n, err := reply.Int64Slice()
	if err == nil && len(n) != want {
		err = fmt.Errorf("expected %d integers from the script, found %d", want, len(n))
	}
	return n, err
}

// micros converts a duration to microseconds. It rounds up, so that a wait in Redis is never shorter than d.
func micros(d time.Duration) int64 {
	us := d.Microseconds()
	if d > time.Duration(us)*time.Microsecond {
		us++
	}
	return us
}

func fromMicros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
