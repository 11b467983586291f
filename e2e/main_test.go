package e2e

import (
	"testing"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
)

// orders is the service under test.
var orders = shoptest.Service("..")

func TestMain(m *testing.M) { faulttest.Main(m, orders) }

// The options of the program that set the time to pay an order.
const (
	envTimeout  = faulttest.EnvPrefix + "ORDER_TIMEOUT"
	timeoutFlag = "--order-timeout"
)
