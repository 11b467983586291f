package app

import (
	"strings"
	"testing"
)

func TestAssessDurability(t *testing.T) {
	for name, test := range map[string]struct {
		fsync, fullPageWrites string
		want                  []string // the verdict of each setting, and the start of its text
	}{
		"durable": {"on", "on", []string{"ok: fsync is on", "ok: full_page_writes is on"}},
		"for tests": {"off", "off", []string{
			"warn: fsync is off: if the server's machine crashes, committed orders can be lost",
			"warn: full_page_writes is off: if the server's machine crashes, committed orders can be lost",
		}},
		"one warning": {"on", "off", []string{"ok: fsync is on", "warn: full_page_writes is off"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := assessDurability(test.fsync, test.fullPageWrites)
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
