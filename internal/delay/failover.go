package delay

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// reloadInterval is the time after which a command makes the client read the nodes of a cluster again. The client does not
// learn of a promoted replica while it sends commands to a master that has died. With a longer interval a shard is unusable
// for longer after its failover. A shorter one costs more commands.
const reloadInterval = time.Second

// follower closes the connections to a former master when the client connects to another one. The client itself closes the
// connections of its pools only, so a subscription would stay at a master that hangs.
type follower struct {
	open sync.Map // the connections; the keys are of type *conn
}

func (f *follower) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		dialed, err := next(ctx, network, addr)
		if errors.Is(err, redis.Nil) {
			// This is a Sentinel's answer. If it were wrapped, a caller of a command would think that a key does not exist.
			return nil, errors.New("the Sentinels do not know the master: check master_name in the Redis URL")
		}
		if err != nil {
			return nil, err
		}
		for key := range f.open.Range {
			if other := key.(*conn); other.RemoteAddr().String() != dialed.RemoteAddr().String() {
				_ = other.Close()
			}
		}
		opened := &conn{dialed, &f.open}
		f.open.Store(opened, nil)
		if raw, ok := dialed.(syscall.Conn); ok {
			return struct { // the pool uses raw to check an idle connection
				*conn
				syscall.Conn
			}{opened, raw}, nil
		}
		return opened, nil
	}
}

func (f *follower) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (f *follower) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// conn is a connection that leaves the set of open ones when it is closed.
type conn struct {
	net.Conn
	open *sync.Map
}

func (c *conn) Close() error {
	c.open.Delete(c)
	return c.Conn.Close()
}

// ReplicationIDs returns the replication ids of the queue's masters. An id changes when a replica is promoted, or when a
// server restarts: tasks may be lost then, although the markers are set. The id of a server that does not tell it is empty.
func (q *Queue) ReplicationIDs(ctx context.Context) string {
	var mu sync.Mutex
	var ids []string
	_ = eachMaster(ctx, q.rdb, func(ctx context.Context, _ string, server redis.Cmdable) error {
		id := server.InfoMap(ctx, "replication").Item("Replication", "master_replid")
		mu.Lock()
		defer mu.Unlock()
		ids = append(ids, id)
		return nil
	})
	slices.Sort(ids)
	return strings.Join(ids, " ")
}
