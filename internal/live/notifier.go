// Package live tells open pages that something has changed. A [Notifier] in the process that changes a row publishes a
// notification through Redis pub/sub; the [Hub] of every process passes it to its subscribers as server-sent events. Without Redis
// a notification reaches the hub of its own process only.
//
// A notification names the row that changed, never its content, and may be lost, repeated or reordered: a page reads
// the row again, and reads it from time to time without a notification.
package live

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/redis/go-redis/v9"
)

// Config configures notifiers and hubs. Those that exchange notifications need the same configuration.
type Config struct {
	Channel        string // the channel of Redis pub/sub
	TopicEvent     string // the name of the event that tells a topic's subscribers which id has changed
	BroadcastEvent string // the name of the event that tells all subscribers, once a second at most, of any change
}

// notification is the JSON form of a notification: an id of a topic has changed.
type notification struct {
	Topic string `json:"topic"`
	ID    string `json:"id"`
}

const (
	// maxQueued is the largest number of notifications in memory while Redis does not answer. More would take more memory, and
	// reach pages that have reloaded since. With fewer, a burst could lose notifications.
	maxQueued = 4096
	// maxPerMessage is the largest number of notifications in one message. More would make the hubs wait longer for a large
	// message. With fewer, a burst would take more messages.
	maxPerMessage = 1000
	// publishInterval is the time between two messages. The notifications of one interval share a message. With a longer
	// interval pages change later, and with a shorter one there are more messages.
	publishInterval = 50 * time.Millisecond
)

// Notifier publishes notifications for every [Hub]. It never delays the caller, and it does not guarantee delivery.
type Notifier struct {
	send  func(ctx context.Context, message []byte) error
	queue chan notification
	log   *slog.Logger
	lost  prometheus.Counter // notifications that were not published
}

// PublishTo returns a function that publishes messages for the hubs of all processes.
func PublishTo(rdb redis.UniversalClient, cfg Config) func(ctx context.Context, message []byte) error {
	return func(ctx context.Context, message []byte) error { return rdb.Publish(ctx, cfg.Channel, message).Err() }
}

// NewNotifier returns a notifier that passes messages to send while [Notifier.Run] runs.
func NewNotifier(send func(ctx context.Context, message []byte) error, log *slog.Logger, reg prometheus.Registerer) *Notifier {
	return &Notifier{
		send: send, queue: make(chan notification, maxQueued), log: log,
		lost: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "feed_hints_lost_total",
			Help: "Notifications that no hub received, because Redis did not answer in time or too many were waiting.",
		}),
	}
}

// Notify queues a notification that an id of a topic has changed. It drops the notification if the queue is full.
func (n *Notifier) Notify(topic, id string) {
	select {
	case n.queue <- notification{topic, id}:
	default:
		n.lost.Inc()
	}
}

// Run publishes notifications until ctx ends. Then it publishes those that are still queued, and returns the first
// error. End ctx only after the last call of [Notifier.Notify], because a later notification may be lost.
func (n *Notifier) Run(ctx context.Context) error {
	failing := false
	for {
		select {
		case <-ctx.Done():
			return n.flush(ctx)
		case first := <-n.queue:
			err := n.publish(ctx, n.collect(first))
			if failed := err != nil; failed != failing && ctx.Err() == nil {
				failing = failed
				n.logChange(err)
			}
		}
		sleep(ctx, publishInterval)
	}
}

// flush publishes the notifications that are queued. After an error it counts the others as lost.
func (n *Notifier) flush(ctx context.Context) error {
	for {
		select {
		case first := <-n.queue:
			if err := n.publish(ctx, n.collect(first)); err != nil {
				n.lost.Add(float64(len(n.queue)))
				return err
			}
		default:
			return nil
		}
	}
}

// logChange logs that publishing began to fail (err is not nil) or succeeds again.
func (n *Notifier) logChange(err error) {
	if err != nil {
		n.log.Warn("notifications are lost until Redis answers; meanwhile open pages only reload from time to time", "error", err)
		return
	}
	n.log.Info("notifications reach Redis again")
}

// collect returns first and the queued notifications, at most as many as a message may have.
func (n *Notifier) collect(first notification) []notification {
	collected := []notification{first}
	for len(collected) < maxPerMessage {
		select {
		case next := <-n.queue:
			collected = append(collected, next)
		default:
			return collected
		}
	}
	return collected
}

// publish sends a message to the hubs. Cancelling ctx does not abort the publish, so that a shutdown loses no notification.
func (n *Notifier) publish(ctx context.Context, notifications []notification) error {
	message, err := json.Marshal(notifications)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := n.send(ctx, message); err != nil {
		n.lost.Add(float64(len(notifications)))
		return fmt.Errorf("publish notifications: %w", err)
	}
	return nil
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
