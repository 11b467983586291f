//go:build !linux

package devstack

import "syscall"

// childOf returns attributes for a child process. The child has a process group of its own, so that Ctrl-C at the
// terminal reaches the parent only. Only Linux can send the child a signal when its parent dies.
func childOf(syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
