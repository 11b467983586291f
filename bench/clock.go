package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// clockAhead is how far the clock of the program that buildAhead builds is ahead.
const clockAhead = 2 * time.Hour

// buildAhead builds this program with another time.Now in dir, and returns its path. Go reads the clock without the C
// library, so that libfaketime cannot change it. The monotonic clock is not changed.
func buildAhead(ctx context.Context, dir string) (path string, err error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("find the source of Go's package time: %w", err)
	}
	source := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(source)
	if err != nil {
		return "", err
	}
	const now = "\tsec, nsec, mono := runtimeNow()\n"
	before, after, found := strings.Cut(string(text), "func Now() Time {\n"+now)
	if !found {
		return "", errors.New("time.Now of this version of Go is not as expected: change buildAhead")
	}
	changed := filepath.Join(dir, "time.go")
	text = fmt.Appendf(nil, "%sfunc Now() Time {\n%s\tsec += %d\n%s", before, now, int(clockAhead.Seconds()), after)
	if err := os.WriteFile(changed, text, 0o600); err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {source: changed}})
	if err != nil {
		return "", err
	}
	replaced := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(replaced, overlay, 0o600); err != nil {
		return "", err
	}
	path = filepath.Join(dir, "ahead")
	// All packages are compiled anew. Without optimization this takes two thirds of the time.
	build := exec.CommandContext(ctx, "go", "build", "-overlay", replaced, "-gcflags=all=-N -l", "-o", path, ".")
	build.Env = append(os.Environ(), "GOTMPDIR="+dir)
	build.Cancel = func() error { return build.Process.Signal(os.Interrupt) } // so that go ends its compilers
	out, err := build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build a program whose clock is ahead: %w: %s", err, out)
	}
	return path, nil
}
