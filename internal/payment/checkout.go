package payment

import (
	"fmt"
	"time"

	"example.com/shop/internal/option"
)

// CheckoutOptions are the options of the checkouts that customers pay at.
type CheckoutOptions struct {
	CheckoutTime time.Duration `name:"checkout-time" default:"3m" help:"The time after the opening of a checkout in which its customer can pay even if the order's deadline passes meanwhile. 0s: a checkout closes at the deadline."`
}

// Check returns an error if an option has a wrong value.
func (o CheckoutOptions) Check() error {
	if o.CheckoutTime < 0 || o.CheckoutTime > time.Hour {
		return fmt.Errorf("%s is %v, want 0s to 1h", option.Name("checkout-time"), o.CheckoutTime)
	}
	return nil
}
