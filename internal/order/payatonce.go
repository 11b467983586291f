package order

import _ "embed"

//go:embed payatonce_openapi.yaml
var payAtOnceContract []byte

// PayAtOnceOptions say whether customers can pay an order at once. A customer who does that gets the goods for nothing. So a
// service with a payment provider offers it only if the option asks for it.
type PayAtOnceOptions struct {
	PayAtOnce      bool `name:"pay-at-once" help:"Let customers pay an order at once and for nothing, although the service has a payment provider: for demos and tests."`
	PayAtOnceQuiet bool `kong:"-"` // logs no warning about PayAtOnce: for a demo, whose user has not set it
}
