// Package keyspace times out orders with keys of Redis that expire. Each order has a key, which expires when the order
// is due. Redis publishes an event for each key that expires (keyspace notifications), and a subscriber cancels the
// order whose id is in the key's name.
//
// The documentation of Redis names two weaknesses:
//
//   - The event is sent when Redis deletes the key, not when its time to live ends. Redis deletes an expired key when
//     a command accesses it, or when its background cycle finds it. With many keys the event can be much later than the
//     end of the time to live.
//   - Events are Pub/Sub messages, which are fire and forget. Redis does not keep an event that nobody receives. If a
//     key expires while no subscriber is connected, its order is never cancelled. A process that dies also loses the
//     events that it has received.
//
// Other known weaknesses:
//
//   - Every subscriber receives every event, so several processes cancel each order several times.
//   - Redis closes the connection of a subscriber that reads too slowly (client-output-buffer-limit).
//   - If Redis loses its data, no order is cancelled.
package keyspace

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/bench/contender"
)

const prefix = "bench:keyspace:"

// Contenders is the one variant.
var Contenders = []contender.Info{{
	Name:     "keyspace notifications",
	Way:      "Each order has a key that expires when it is due; a subscriber to the expired events cancels it.",
	Source:   "https://redis.io/docs/latest/develop/pubsub/keyspace-notifications/",
	Settings: "notify-keyspace-events Ex; 1 subscriber, 8 goroutines that cancel",
	Servers:  []contender.Server{contender.Redis},
	New: func(_ context.Context, env contender.Env) (contender.Contender, error) {
		return &keyspace{env: env}, nil
	},
}}

type keyspace struct{ env contender.Env }

// Schedule sets a key for each order. A key that exists gets the new time to live.
func (k *keyspace) Schedule(ctx context.Context, orders []contender.Order) error {
	_, err := k.env.Redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, o := range orders {
			// The client cuts off fractions of a millisecond, and sets a key that never expires if nothing is left.
			p.Set(ctx, prefix+o.ID, "", o.Left()+time.Millisecond)
		}
		return nil
	})
	return err
}

// Run subscribes, and passes the ids from the events to the goroutines that cancel.
func (k *keyspace) Run(ctx context.Context, ready func()) error {
	ready = sync.OnceFunc(ready)
	expired := make(chan string)
	var group sync.WaitGroup
	group.Go(func() {
		contender.Repeat(ctx, k.env.Log, func(ctx context.Context) error { return k.listen(ctx, expired, ready) })
	})
	for range contender.Workers {
		group.Go(func() {
			contender.Repeat(ctx, k.env.Log, func(ctx context.Context) error { return k.cancel(ctx, expired) })
		})
	}
	group.Wait()
	return nil
}

// listen sends the ids of the keys that expire to the channel, until ctx ends or the connection breaks.
func (k *keyspace) listen(ctx context.Context, expired chan<- string, ready func()) error {
	// A Redis that was restarted has lost this setting, so each connection sets it.
	if err := k.env.Redis.ConfigSet(ctx, "notify-keyspace-events", "Ex").Err(); err != nil {
		return err
	}
	events := k.env.Redis.Subscribe(ctx, fmt.Sprintf("__keyevent@%d__:expired", database(k.env.Redis)))
	defer events.Close()
	// The end of ctx does not wake a Receive that waits. Close does.
	stop := context.AfterFunc(ctx, func() { events.Close() })
	defer stop()

	if _, err := events.Receive(ctx); err != nil { // the subscription is confirmed
		return err
	}
	ready()
	for {
		event, err := events.ReceiveMessage(ctx)
		if err != nil {
			return err
		}
		id, found := strings.CutPrefix(event.Payload, prefix)
		if !found {
			continue
		}
		select {
		case expired <- id:
		case <-ctx.Done():
			return nil
		}
	}
}

// database returns the number of the client's database. A Redis Cluster has only database 0.
func database(client redis.UniversalClient) int {
	if c, ok := client.(*redis.Client); ok {
		return c.Options().DB
	}
	return 0
}

// cancel cancels the next order. If it cannot, it sets the order's key again, because Redis does not repeat the event.
func (k *keyspace) cancel(ctx context.Context, expired <-chan string) error {
	var id string
	select {
	case id = <-expired:
	case <-ctx.Done():
		return nil
	}
	early, err := k.env.Cancel(ctx, id)
	if err != nil {
		early = []contender.Order{{ID: id, Due: time.Now().Add(time.Second)}}
	}
	// Nothing else has this order any more, so set its key again even if ctx has ended.
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second/2)
	defer stop()
	return errors.Join(err, k.Schedule(ctx, early))
}
