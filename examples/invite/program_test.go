package main

import (
	"testing"

	"example.com/shop/internal/testenv/programtest"
)

// TestInviteDocs checks that the files exist that the module's README names. In a copy it is that of this program.
func TestInviteDocs(t *testing.T) {
	const module = "../.."
	docs := programtest.Read(t, module+"/README.md")
	programtest.Links(t, docs)
	programtest.NamedFiles(t, docs, module)
}

// TestInviteOptions checks the names of the options, and those that hold secrets.
func TestInviteOptions(t *testing.T) {
	programtest.OptionNames(t, programtest.Options(t, &commands{}))
}

// TestInviteDemo runs the demo, and waits until an invitation has expired.
func TestInviteDemo(t *testing.T) {
	t.Parallel() // it waits for a deadline most of the time
	s := newService(t, programtest.Demo(t, program(), &commands{}, "--timeout=2s"))
	s.waitForExpiry(t, s.create(t))
}
