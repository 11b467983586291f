package e2e

import (
	"testing"

	"example.com/shop/internal/faulttest"
)

func TestBrokenServices(t *testing.T) { faulttest.Broken(t, orders, "..") }
