package devstack

import "syscall"

// childOf returns attributes for a child process. The child has a process group of its own, so that Ctrl-C at the
// terminal reaches the parent only. The child receives the signal when its parent dies.
func childOf(death syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: death}
}

// asNobody adds a user namespace, in which root has the id of nobody and still owns its files. PostgreSQL does not
// run as root, but runs in this namespace.
func asNobody(attr *syscall.SysProcAttr) *syscall.SysProcAttr {
	const nobody = 65534
	attr.Cloneflags = syscall.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: nobody, HostID: 0, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: nobody, HostID: 0, Size: 1}}
	return attr
}
