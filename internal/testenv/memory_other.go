//go:build !linux

package testenv

// useMemory does nothing: only Linux has a directory in memory.
func useMemory() {}
