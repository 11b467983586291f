//go:build !linux

package devstack

import "syscall"

// childOf makes a child that has its own process group, so that a Ctrl-C at the terminal reaches the
// parent alone. Only Linux can tie a child's life to its parent's.
func childOf(syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// asNobody changes nothing: there are no user namespaces, and asUser comes next.
func asNobody(attr *syscall.SysProcAttr) *syscall.SysProcAttr { return attr }
