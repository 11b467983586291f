// Package live tells open pages that something has changed. A [Notifier] in the process that changes a row publishes
// a notification through Redis pub/sub; the [Hub] of every process passes it to its subscribers as server-sent
// events. Without Redis a notification reaches the hub of its own process only.
//
// A notification names the row that changed, never its content, and may be lost, repeated or reordered: a page reads
// the row again, and reads it from time to time without a notification.
package live

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/background"
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

// Notifier publishes notifications for every [Hub]. It never delays the caller, and it does not guarantee delivery.
type Notifier struct {
	sender *background.Sender[notification]
}

// PublishTo returns a function that publishes messages for the hubs of all processes.
func PublishTo(rdb redis.UniversalClient, cfg Config) func(ctx context.Context, message []byte) error {
	return func(ctx context.Context, message []byte) error { return rdb.Publish(ctx, cfg.Channel, message).Err() }
}

// NewNotifier returns a notifier that passes messages to send while [Notifier.Run] runs. The notifications of 50 ms
// share a message.
func NewNotifier(send func(ctx context.Context, message []byte) error, log *slog.Logger, reg prometheus.Registerer) *Notifier {
	return &Notifier{background.NewSender(background.Config[notification]{
		What: "notifications of open pages",
		Send: func(ctx context.Context, batch []notification) error {
			message, err := json.Marshal(batch)
			if err != nil {
				return err
			}
			return send(ctx, message)
		},
		Waiting:  4096,
		Batch:    1000,
		Timeout:  time.Second,
		Interval: 50 * time.Millisecond,
		Lost: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "feed_hints_lost_total",
			Help: "Notifications that no hub received, because Redis did not answer in time or too many were waiting.",
		}),
	}, log)}
}

// Notify queues a notification that an id of a topic has changed, and returns at once.
func (n *Notifier) Notify(topic, id string) { n.sender.Add(notification{topic, id}) }

// Run publishes notifications until ctx ends, and then those that are still queued. End ctx only after the last call
// of [Notifier.Notify].
func (n *Notifier) Run(ctx context.Context) error { return n.sender.Run(ctx) }
