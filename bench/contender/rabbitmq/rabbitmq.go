// Package rabbitmq times out orders with RabbitMQ's time-to-live and dead-letter exchanges, the usual way to delay
// messages without a plugin: https://www.rabbitmq.com/docs/ttl and https://www.rabbitmq.com/docs/dlx.
//
// An order is a persistent message in a durable queue without consumers. When the message expires, RabbitMQ moves it to
// a second queue, and a consumer of that queue cancels the order and acks the message. There are two variants:
//
//   - Per-message TTL: one queue holds all orders, and each message has an expiration. RabbitMQ expires a message only
//     at the head of its queue. So an order with a short delay waits behind orders with longer delays.
//   - Per-queue TTL: each level of delay has a queue of its own, in which messages expire in the order in which they
//     arrive. An order waits in the queue of the shortest level that is at least its delay. So an order with a delay
//     between two levels is late.
//
// Neither variant can find a message again. So an order with a new due time gets a second message. The first message
// then arrives too early, or after the order has ended. A classic queue dead-letters messages without publisher
// confirms. So a message can be lost if the server ends while it moves the message.
package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"example.com/shop/bench/contender"
)

// prefetch is the number of messages that a consumer may hold without an ack, and so its largest batch. RabbitMQ's
// guide on consumer acknowledgements recommends 100 to 300.
const prefetch = 250

// linger is how long a consumer waits for more messages of a batch. The client hands over messages one by one, so a
// consumer that did not wait would cancel most orders alone.
const linger = 5 * time.Millisecond

// Contenders has the two variants.
var Contenders = []contender.Info{
	{
		Name:     "RabbitMQ, per-message TTL",
		Way:      "A message per order expires in one queue, and RabbitMQ moves it to the queue of the consumers.",
		Source:   "https://www.rabbitmq.com/docs/ttl",
		Settings: settings,
		Servers:  []contender.Server{contender.Rabbit},
		New: func(_ context.Context, env contender.Env) (contender.Contender, error) {
			return &queue{env: env, due: messageTTLDue, waiting: messageTTLWaiting()}, nil
		},
	},
	{
		Name:     "RabbitMQ, per-queue TTL",
		Way:      "A message per order expires in a queue for its delay; RabbitMQ moves it to the consumers' queue.",
		Source:   "https://www.rabbitmq.com/docs/dlx",
		Settings: "as above; 14 levels of delay from 1 s to 24 h",
		Servers:  []contender.Server{contender.Rabbit},
		New: func(_ context.Context, env contender.Env) (contender.Contender, error) {
			return &queue{env: env, due: queueTTLDue, waiting: queueTTLWaiting()}, nil
		},
	},
}

const settings = "durable classic queues in lazy mode, persistent messages, publisher confirms, prefetch 250, 8 " +
	"consumers that collect a batch for 5 ms"

// The queues of expired messages.
const (
	messageTTLDue = "bench.message-ttl.due"
	queueTTLDue   = "bench.queue-ttl.due"
)

// level is a queue in which messages wait. A ttl of 0 means that each message has its own.
type level struct {
	queue string
	ttl   time.Duration
}

// messageTTLWaiting returns the queue of the per-message variant.
func messageTTLWaiting() []level { return []level{{queue: "bench.message-ttl.waiting"}} }

// queueTTLWaiting returns the queues of the per-queue variant, the shortest delay first.
func queueTTLWaiting() []level {
	var all []level
	for _, ttl := range []time.Duration{
		time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 15 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 6 * time.Hour, 24 * time.Hour,
	} {
		all = append(all, level{"bench.queue-ttl.waiting." + ttl.String(), ttl})
	}
	return all
}

// queue is the contender. It publishes and consumes on separate connections, because RabbitMQ may block a connection
// that publishes.
type queue struct {
	env     contender.Env
	due     string  // the queue of expired messages
	waiting []level // the queues in which messages wait

	mu      sync.Mutex
	publish *publishing // nil before the first Schedule
}

// publishing is a connection with a channel in confirm mode.
type publishing struct {
	conn *amqp.Connection
	ch   *amqp.Channel
}

// Clean deletes the queues of both variants, so that neither runs beside the messages of the other.
func (q *queue) Clean(context.Context) error {
	conn, err := amqp.Dial(q.env.RabbitURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	due := []level{{queue: messageTTLDue}, {queue: queueTTLDue}}
	for _, l := range slices.Concat(due, messageTTLWaiting(), queueTTLWaiting()) {
		if _, err := ch.QueueDelete(l.queue, false, false, false); err != nil {
			return fmt.Errorf("delete the queue %s: %w", l.queue, err)
		}
	}
	return nil
}

// Schedule publishes a message for each order, and then waits until RabbitMQ has confirmed all of them.
func (q *queue) Schedule(ctx context.Context, orders []contender.Order) error {
	ch, err := q.publisher()
	if err != nil {
		return err
	}
	var confirms []*amqp.DeferredConfirmation
	for _, order := range orders {
		name, expiration := q.route(order.Left())
		confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", name, false, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent, Expiration: expiration, Body: []byte(order.ID),
		})
		if err != nil {
			return err
		}
		confirms = append(confirms, confirm)
	}
	for _, confirm := range confirms {
		acked, err := confirm.WaitContext(ctx)
		if err != nil {
			return err
		}
		if !acked {
			return errors.New("RabbitMQ did not confirm a message")
		}
	}
	return nil
}

// route returns the queue for a delay, and the expiration of the message, or "" if the queue has a TTL. An order with a
// delay longer than the last level arrives too early and waits again.
func (q *queue) route(delay time.Duration) (name, expiration string) {
	for _, l := range q.waiting {
		if l.ttl == 0 {
			milliseconds := (delay + time.Millisecond - 1).Milliseconds() // rounded up
			return l.queue, strconv.FormatInt(milliseconds, 10)
		}
		if delay <= l.ttl {
			return l.queue, ""
		}
	}
	return q.waiting[len(q.waiting)-1].queue, ""
}

// publisher returns the channel for publishing. If the channel or its connection has failed, it connects again.
func (q *queue) publisher() (*amqp.Channel, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.publish != nil {
		if !q.publish.ch.IsClosed() {
			return q.publish.ch, nil
		}
		_ = q.publish.conn.Close() // RabbitMQ may have closed only the channel
		q.publish = nil
	}
	conn, ch, err := q.connect()
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		_ = conn.Close()
		return nil, err
	}
	q.publish = &publishing{conn, ch}
	return ch, nil
}

// connect connects and declares the queues, which a server without its data does not have.
func (q *queue) connect() (*amqp.Connection, *amqp.Channel, error) {
	conn, err := amqp.Dial(q.env.RabbitURL)
	if err != nil {
		return nil, nil, err
	}
	ch, err := conn.Channel()
	if err == nil {
		err = q.declare(ch)
	}
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, ch, nil
}

func (q *queue) declare(ch *amqp.Channel) error {
	// Before RabbitMQ 3.12, lazy mode is the recommended mode of long queues. Later versions ignore it.
	const mode, lazy = "x-queue-mode", "lazy"
	if _, err := ch.QueueDeclare(q.due, true, false, false, false, amqp.Table{mode: lazy}); err != nil {
		return err
	}
	for _, l := range q.waiting {
		args := amqp.Table{mode: lazy, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": q.due}
		if l.ttl > 0 {
			args["x-message-ttl"] = l.ttl.Milliseconds()
		}
		if _, err := ch.QueueDeclare(l.queue, true, false, false, false, args); err != nil {
			return err
		}
	}
	return nil
}

// Run consumes the expired messages. After a failure it connects again, and RabbitMQ delivers the messages without an
// ack again.
func (q *queue) Run(ctx context.Context, ready func()) error {
	ready = sync.OnceFunc(ready)
	contender.Repeat(ctx, q.env.Log, func(ctx context.Context) error { return q.consume(ctx, ready) })
	return nil
}

// consume runs the consumers on one connection, until the connection or a consumer fails, or ctx ends.
func (q *queue) consume(ctx context.Context, ready func()) error {
	conn, _, err := q.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	var channels []<-chan amqp.Delivery
	for range contender.Workers {
		deliveries, err := q.subscribe(conn)
		if err != nil {
			return err
		}
		channels = append(channels, deliveries)
	}
	consumers, ctx := errgroup.WithContext(ctx)
	for _, deliveries := range channels {
		consumers.Go(func() error { return q.cancelAll(ctx, deliveries) })
	}
	ready()
	return consumers.Wait()
}

// subscribe starts a consumer on a channel of its own.
func (q *queue) subscribe(conn *amqp.Connection) (<-chan amqp.Delivery, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return nil, err
	}
	return ch.Consume(q.due, "", false, false, false, false, nil)
}

// cancelAll cancels the orders of the deliveries until it fails or ctx ends. One ack acknowledges a batch.
func (q *queue) cancelAll(ctx context.Context, deliveries <-chan amqp.Delivery) error {
	for {
		batch, err := receive(ctx, deliveries)
		if err != nil {
			return err
		}
		var ids []string
		for _, d := range batch {
			ids = append(ids, string(d.Body))
		}
		early, err := q.env.Cancel(ctx, ids...)
		if err != nil {
			return err
		}
		if len(early) > 0 {
			if err := q.Schedule(ctx, early); err != nil {
				return err
			}
		}
		if err := batch[len(batch)-1].Ack(true); err != nil {
			return err
		}
	}
}

// receive waits for a delivery, and returns it with those that arrive within linger.
func receive(ctx context.Context, deliveries <-chan amqp.Delivery) ([]amqp.Delivery, error) {
	var batch []amqp.Delivery
	var end <-chan time.Time // nil, so it blocks, until the first delivery
	for len(batch) < prefetch {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-end:
			return batch, nil
		case d, ok := <-deliveries:
			if !ok {
				return nil, errors.New("RabbitMQ closed the channel of a consumer")
			}
			batch = append(batch, d)
			if len(batch) == 1 {
				end = time.After(linger)
			}
		}
	}
	return batch, nil
}
