// Package e2e breaks the shop with a payment provider under load, with the fault tests of package faulttest.
package e2e

import (
	"testing"

	"example.com/shop/internal/faulttest"
	// The go command repeats these tests when the program changes, and not only when a file of this module does.
	_ "example.com/shop/internal/shop"
)

func TestMain(m *testing.M) { faulttest.Main(m, shop) }

// TestChaos also breaks the provider.
func TestChaos(t *testing.T) { faulttest.Chaos(t, shop, providerFaults...) }
