//go:build !linux

package devstack_test

import "errors"

// startHiddenPostgres needs a mount namespace, which only Linux has.
func startHiddenPostgres() error { return errors.ErrUnsupported }
