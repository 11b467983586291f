package live

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"example.com/shop/internal/background"
)

// notification is the JSON form of a notification: the row with this id has changed. The topic is the row's customer.
type notification struct {
	Topic string `json:"topic"`
	ID    string `json:"id"`
}

// newNotifier returns a sender of notifications to the hubs of all processes. The notifications of 50 ms share a
// message.
func newNotifier(h *hub, log *slog.Logger, reg prometheus.Registerer) *background.Sender[notification] {
	return background.NewSender(background.Config[notification]{
		What:     "notifications of open pages",
		Send:     h.publish,
		Waiting:  4096,
		Batch:    1000,
		Interval: 50 * time.Millisecond,
		Lost: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "feed_notifications_lost_total",
			Help: "Notifications that no hub received, because Redis did not answer in time or too many were waiting.",
		}),
	}, log)
}

// publish passes notifications to the hubs of all processes.
func (h *hub) publish(ctx context.Context, batch []notification) error {
	message, err := json.Marshal(batch)
	if err != nil {
		return err
	}
	return h.rdb.Publish(ctx, h.names.Channel, message).Err()
}
