// Package live tells open pages that something has changed. A process that changes a row publishes a notification
// through Redis pub/sub; the hub of every process passes it to its subscribers as server-sent events.
//
// A notification names the row that changed, never its content, and may be lost, repeated or reordered: a page reads
// the row again, and reads it from time to time without a notification.
package live

import (
	_ "embed"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/app"
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

// Add adds notifications to a process. At GET /api/events the pages of a customer receive the notifications about the
// customer's rows. Add returns the function to call when a row of a customer has changed. The function never delays its
// caller, and does not guarantee delivery.
func Add(p *app.Process, names Names, customers *rest.Tokens) (changed func(customer, row string)) {
	h := newHub(p.Redis, names, p.Log, p.Metrics)
	notifier := newNotifier(h, p.Log, p.Metrics)
	p.Add(app.Part{
		Contract: [][]byte{contract},
		Streams:  []string{streamPath},
		Routes: func(root, _ gin.IRouter) {
			customer := func(c *gin.Context) string { return rest.Customer(c).String() }
			root.Match(rest.ReadMethods, streamPath, rest.Parameters(), customers.Authenticate(), h.serve(customer))
		},
		Components: []app.Component{
			{Role: app.API, Run: h.run},
			{Run: notifier.Run, Last: true}, // the other components still change rows while they stop
		},
	})
	return func(customer, row string) { notifier.Add(notification{customer, row}) }
}
