package delay

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// followsSentinels reports whether Sentinels name the master to a client of [Connect]. When they name another master,
// the client closes the connections of its pools, but a subscription stays at a former master that hangs. So a listener
// must subscribe anew after a silence.
func followsSentinels(rdb redis.UniversalClient) bool {
	client, ok := rdb.(*redis.Client)
	return ok && client.Options().Addr == "FailoverClient" // the name that the client has instead of an address
}

// masterHook names the cause if the Sentinels do not know the master. Otherwise a caller of a command would get
// [redis.Nil], as if a key did not exist.
type masterHook struct{}

func (masterHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if errors.Is(err, redis.Nil) {
			err = errors.New("the Sentinels do not know the master: check master_name in the Redis URL")
		}
		return conn, err
	}
}

func (masterHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (masterHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ReplicationIDs returns the replication ids of the queue's masters. An id changes when a replica is promoted or a
// server restarts. Then tasks may be lost although the markers are set. A server that does not report its id counts as
// one with an empty id.
func (q *Queue) ReplicationIDs(ctx context.Context) string {
	infos, _ := InfoOfMasters(ctx, q.rdb, "replication")
	var ids []string
	for _, info := range infos {
		ids = append(ids, info.Item("Replication", "master_replid"))
	}
	slices.Sort(ids)
	return strings.Join(ids, " ")
}
