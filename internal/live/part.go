// Package live tells open pages that something has changed. A process that changes a row publishes a notification
// through Redis pub/sub; the hub of every process passes it to its subscribers as server-sent events.
//
// A notification names the row that changed, never its content, and may be lost, repeated or reordered: a page reads
// the row again, and reads it from time to time without a notification.
package live

import (
	"context"
	_ "embed"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/app"
	"example.com/shop/internal/background"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/rest"
)

//go:embed openapi.yaml
var contract []byte

const streamPath = "/api/events" // its answers do not end

// Names are the names that a service gives to its channel and its events.
type Names struct {
	Channel   string // of Redis pub/sub
	Row       string // of the event that tells a customer's pages which row has changed
	Broadcast string // of the event that tells all pages, once a second at most, of any change
}

// Notifications are the notifications of a process about the rows of customers.
type Notifications struct {
	hub      *hub
	notifier *background.Sender[notification]
}

// New returns the notifications of a process.
func New(b *app.Base, names Names) *Notifications {
	h := newHub(b.Redis, names, b.Log, b.Metrics)
	return &Notifications{h, newNotifier(h, b.Log, b.Metrics)}
}

// Changed tells the pages of a customer that a row has changed. It never delays its caller, and does not guarantee
// delivery.
func (n *Notifications) Changed(customer, row string) { n.notifier.Add(notification{customer, row}) }

// Part is what notifications add to a process. At GET /api/events the pages of a customer receive the notifications
// about the customer's rows.
func (n *Notifications) Part(customers *rest.Tokens) app.Part {
	return app.Part{
		Contract: [][]byte{contract},
		Streams:  []string{streamPath},
		Routes: func(root, _ gin.IRouter) {
			customer := func(c *gin.Context) string { return rest.Customer(c).String() }
			root.Match(rest.ReadMethods, streamPath, rest.Parameters(), customers.Authenticate(), n.hub.serve(customer))
		},
		Checks: []app.Check{{
			Subject: "pages", Good: "Redis passes on the notifications for open pages",
			Run: func(ctx context.Context) error { return delay.CheckChannel(ctx, n.hub.rdb, n.hub.names.Channel) },
		}},
		Components: []app.Component{
			{Role: app.API, Run: n.hub.run},
			{Run: n.notifier.Run, Last: true}, // the other components still change rows while they stop
		},
	}
}
