package batch_test

import (
	"testing"

	"example.com/shop/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
