//go:build !linux

package rabbit

import "syscall"

// killedWithParent returns attributes for a child process. The child has a process group of its own, so that Ctrl-C at
// the terminal reaches the parent only. Only Linux can kill the child when its parent dies.
func killedWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
