package devstack

import "syscall"

// childOf returns attributes for a child process. The child has a process group of its own, so that Ctrl-C at the
// terminal reaches the parent only. The child receives the signal when its parent dies.
func childOf(death syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: death}
}
