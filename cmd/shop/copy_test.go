package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"example.com/shop/internal/testenv"
)

// TestCopyRefuses calls scripts/copy with wrong arguments. Each call ends with one line and exit code 2. It makes no
// file, and leaves a folder that exists as it is.
func TestCopyRefuses(t *testing.T) {
	script, err := filepath.Abs(repositoryRoot + "/scripts/copy")
	testenv.Must(t, err)
	const module = "github.com/acme/seats"
	for name, test := range map[string]struct {
		module, dir string
		want        string // a part of the message
	}{
		"a folder that exists":             {module, "mine", "does not exist yet"},
		"the same, by a missing one":       {module, "new/../mine", "in one that exists"},
		"the same, by a link":              {module, "link/mine", "does not exist yet"},
		"the same, with a slash":           {module, "mine/", "does not exist yet"},
		"a broken link":                    {module, "broken", "does not exist yet"},
		"this folder":                      {module, ".", "does not exist yet"},
		"the folder above":                 {module, "other/..", "does not exist yet"},
		"a file":                           {module, "mine/kept", "does not exist yet"},
		"a folder in a file":               {module, "mine/kept/new", "in one that exists"},
		"no folder":                        {module, "", "does not exist yet"},
		"white space":                      {module, "a copy", "white space"},
		"a local module path":              {"..", "copy", "local import path"},
		"a module path with a wrong major": {"github.com/acme/seats/v1", "copy", "major version"},
		"no module path":                   {"", "copy", "MODULE is"},
	} {
		root := t.TempDir()
		for _, err := range []error{
			os.MkdirAll(filepath.Join(root, "mine"), 0o755), os.Mkdir(filepath.Join(root, "other"), 0o755),
			os.WriteFile(filepath.Join(root, "mine", "kept"), []byte("kept"), 0o600),
			os.Symlink(".", filepath.Join(root, "link")), os.Symlink("nowhere", filepath.Join(root, "broken")),
		} {
			testenv.Must(t, err)
		}
		before := tree(t, root)
		cmd := exec.CommandContext(t.Context(), script, test.module, test.dir, "seats")
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		exit := new(exec.ExitError)
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || strings.Count(string(out), "\n") != 1 ||
			!strings.Contains(string(out), test.want) {
			t.Errorf("%s: copy ends with %v and prints %q, want exit code 2 and one line with %q",
				name, err, out, test.want)
		}
		if after := tree(t, root); after != before {
			t.Errorf("%s: copy has changed the files from\n%sto\n%s", name, before, after)
		}
	}
}

// tree returns the paths and the contents of all files below a folder.
func tree(t *testing.T, root string) string {
	t.Helper()
	var text strings.Builder
	testenv.Must(t, filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		content := []byte{}
		if err == nil && entry.Type().IsRegular() {
			content, err = os.ReadFile(path)
		}
		text.WriteString(path + " " + string(content) + "\n")
		return err
	}))
	return text.String()
}
