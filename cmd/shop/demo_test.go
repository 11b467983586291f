package main

import (
	"strings"
	"testing"
)

func TestDemoTimeoutTooShort(t *testing.T) {
	setEnvironment(t, nil)
	var out strings.Builder
	code := runCommand(t.Context(), []string{"demo", "--order-timeout=1ms"}, &out)
	if code != 2 || !strings.Contains(out.String(), "SHOP_ORDER_TIMEOUT") {
		t.Errorf("the exit code is %d and the output %q, want 2 and the name SHOP_ORDER_TIMEOUT", code, out.String())
	}
}
