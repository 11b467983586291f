package e2e

import (
	"testing"

	"example.com/shop/internal/faulttest"
)

func TestBrokenPayments(t *testing.T) { faulttest.Broken(t, shop, "../..") }
