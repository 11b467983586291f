//go:build !linux

package devstack_test

import "errors"

// startHiddenPostgres needs a file system of its own, which only Linux gives a process.
func startHiddenPostgres() error { return errors.ErrUnsupported }
