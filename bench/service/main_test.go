// Package service measures the shop alone: what an order costs, in processor time and in bytes, whether millions of
// ended orders make anything slower, and how fast payments settle. The reports are capacity.md, size.md and growth.md
// in the folder docs of this module. The figures of payments are in its README, and the others in docs/production.md of
// the module above. The benchmarks need no other contender, so they are benchmarks of package testing.
package service

import (
	"testing"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
	"example.com/shop/payments/paymenttest"
)

// orders is the shop, and paid is the shop with payments.
var (
	orders = shoptest.Service("../..")
	paid   = paymenttest.Service("../..")
)

// TestMain prepares databases for paid. Those of orders are made by the benchmarks.
func TestMain(m *testing.M) { faulttest.Main(m, paid) }
