// Package e2e breaks the shop with a payment provider under load, with the fault tests of package faulttest.
package e2e

import (
	"testing"

	"example.com/shop/internal/faulttest"
)

func TestMain(m *testing.M) { faulttest.Main(m, shop) }

// TestChaos also breaks the provider.
func TestChaos(t *testing.T) { faulttest.Chaos(t, shop, providerFaults...) }
