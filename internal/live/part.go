package live

import (
	_ "embed"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/app"
	"example.com/shop/internal/rest"
)

//go:embed openapi.yaml
var contract []byte

// streamPath is the path of the notifications. Its answers do not end.
const streamPath = "/api/events"

// Add adds notifications to a process. The pages of a customer receive those on the customer's rows at GET /api/events.
// Add returns the function to call when a row of a customer has changed.
func Add(p *app.Process, cfg Config, customers *rest.Tokens) (changed func(customer, row string)) {
	hub := NewHub(p.Redis, cfg, p.Log, p.Metrics)
	send := hub.deliver
	if p.Redis != nil {
		send = PublishTo(p.Redis, cfg)
	}
	notifier := NewNotifier(send, p.Log, p.Metrics)
	p.Add(app.Part{
		Contract: [][]byte{contract},
		Streams:  []string{streamPath},
		Routes: func(root, _ gin.IRouter) {
			customer := func(c *gin.Context) string { return rest.Customer(c).String() }
			root.Match(rest.ReadMethods, streamPath, rest.Parameters(), customers.Authenticate(), hub.Stream(customer))
		},
		Components: []app.Component{
			{Role: app.API, Run: hub.Run},
			{Run: notifier.Run, Last: true}, // the other components still change rows while they stop
		},
	})
	return notifier.Notify
}
