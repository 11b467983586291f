package shoptest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

// Demo starts the demo of a program, after change has changed the command. The demo writes its files to a directory to
// which any user may write.
func Demo(t *testing.T, service *faulttest.Service, change func(*exec.Cmd), args ...string) *faulttest.Process {
	t.Helper()
	dir := t.TempDir()
	for at := dir; at != os.TempDir() && len(at) > 1; at = filepath.Dir(at) {
		testenv.Must(t, os.Chmod(at, 0o777))
	}
	cmd := service.Command(t, []string{"TMPDIR=" + dir, "HOME=" + dir},
		append([]string{"demo", "--http-addr", "127.0.0.1:0"}, args...)...)
	if change != nil {
		change(cmd)
	}
	return service.Start(t, cmd)
}
