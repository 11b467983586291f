package devstack

import "syscall"

// childOf makes a child that has its own process group, so that a Ctrl-C at the terminal reaches the
// parent alone, and that gets a signal when its parent dies.
func childOf(death syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: death}
}

// asNobody is for PostgreSQL, which refuses to run as root: in a user namespace root is someone else,
// and owns the same files.
func asNobody(attr *syscall.SysProcAttr) *syscall.SysProcAttr {
	const nobody = 65534
	attr.Cloneflags = syscall.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: nobody, HostID: 0, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: nobody, HostID: 0, Size: 1}}
	return attr
}
