// Package programtest checks that a program agrees with what is written about it, and that it does what every program
// of this repository does. A module of the repository runs these checks on its own program:
//   - [Links], [Runbooks], [NamedFiles] and [NamedTests] check the documents of the module;
//   - [ConfigurationTable] compares the documents' tables of options with the options;
//   - [ObservedMetrics] looks for the metrics that alerts, dashboards and documents name;
//   - [OptionNames] checks the command line;
//   - [Demo] runs the demo.
//
// All paths are relative to the folder of the test.
package programtest

import (
	"os"
	"strings"
	"testing"

	"example.com/shop/internal/app"
	"example.com/shop/internal/testenv"
)

// Main is [testenv.Main] without the program's own variables in the environment, because the developer may have set
// some.
func Main(m *testing.M, schema ...testenv.Migration) {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, app.EnvPrefix+"_") {
			if err := os.Unsetenv(name); err != nil {
				panic(err)
			}
		}
	}
	testenv.Main(m, schema...)
}

// CheckError checks that err is nil if want is nil, and otherwise is one line with all parts of want.
func CheckError(t testing.TB, err error, want []string) {
	t.Helper()
	if (err == nil) != (want == nil) {
		t.Fatalf("got %v, want %q", err, want)
	}
	for _, part := range want {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("got %q, want %q in it", err, part)
		}
	}
	if err != nil && strings.Contains(err.Error(), "\n") {
		t.Errorf("got %q, want one line", err)
	}
}
