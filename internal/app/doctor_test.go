package app

import (
	"strings"
	"testing"

	"example.com/shop/internal/postgres"
)

func TestAssess(t *testing.T) {
	for name, test := range map[string]struct {
		server postgres.Durability
		want   []string // the verdict of each setting, and the start of its text
	}{
		"durable": {postgres.Durability{Fsync: "on", FullPageWrites: "on", SynchronousCommit: "on"}, []string{
			"ok: fsync is on", "ok: full_page_writes is on", "ok: synchronous_commit is on",
		}},
		"for tests": {postgres.Durability{Fsync: "off", FullPageWrites: "off", SynchronousCommit: "off"}, []string{
			"warn: fsync is off: if the server's machine crashes, committed orders can be lost",
			"warn: full_page_writes is off: if the server's machine crashes, committed orders can be lost",
			"note: synchronous_commit is off, but the service's sessions set it to on",
		}},
		"one warning": {postgres.Durability{Fsync: "on", FullPageWrites: "off", SynchronousCommit: "remote_apply"}, []string{
			"ok: fsync is on", "warn: full_page_writes is off", "ok: synchronous_commit is remote_apply",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got := assess(test.server)
			if len(got) != len(test.want) {
				t.Fatalf("got %q, want %q", got, test.want)
			}
			for i, a := range got {
				if line := a.verdict + ": " + a.text; !strings.HasPrefix(line, test.want[i]) {
					t.Errorf("got %q, want %q at its start", line, test.want[i])
				}
			}
		})
	}
}
