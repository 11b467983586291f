package faulttest

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"example.com/shop/internal/testenv"
)

// TestReadBroken reads a list of broken services and applies their changes.
func TestReadBroken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "broken.txt")
	testenv.Must(t, os.WriteFile(path, []byte(`broken: no deadline
breaks: invariant 4
in: Pays
- at < due
+ true
caught by: TestA/b TestC/*
others: none

broken: two changes
breaks: all
- one
-  two
+ three
in: Cancels
- four
- five
caught by: TestA
others: all
`), 0o600))
	list, err := readBroken(path)
	testenv.Must(t, err)
	want := []brokenService{
		{
			"no deadline", "invariant 4", []change{{"Pays", []string{"at < due"}, []string{"true"}}},
			[]string{"TestA/b", "TestC/*"}, "none",
		},
		{"two changes", "all", []change{
			{"", []string{"one", " two"}, []string{"three"}}, {"Cancels", []string{"four", "five"}, nil},
		}, []string{"TestA"}, "all"},
	}
	if !reflect.DeepEqual(list, want) {
		t.Errorf("read %+v, want %+v", list, want)
	}
	files := map[string]string{
		"pay.sql": "-- Pays\nat < due\n", "cancel.sql": "-- Cancels\nat < due\none\n two\nfour\nfive\n",
	}
	for i, want := range []map[string]string{
		{"pay.sql": "-- Pays\ntrue\n"}, {"cancel.sql": "-- Cancels\nat < due\nthree\n\n"},
	} {
		changed, err := list[i].apply(files)
		if err != nil || !reflect.DeepEqual(changed, want) {
			t.Errorf("%s: changed %q, %v; want %q", list[i].name, changed, err, want)
		}
	}
	for text, files := range map[string]map[string]string{
		"found it in 0": {"pay.sql": "-- Pays\n"}, "found it in 2": {"pay.sql": "-- Pays\nat < due or at < due\n"},
	} {
		if _, err := list[0].apply(files); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("the error is %v, want one with %q", err, text)
		}
	}
}

// TestResultsOf reads the output of go test -v.
func TestResultsOf(t *testing.T) {
	got := resultsOf([]byte(strings.Join([]string{
		"=== RUN   TestFaults", "    load.go:1: --- FAIL: no result", "--- FAIL: TestFaults (3.00s)",
		"    --- FAIL: TestFaults/hung (2.00s)", "        --- PASS: TestFaults/hung/alone (1.00s)",
		"    --- PASS: TestFaults/wiped (2.00s)", "    --- SKIP: TestFaults/clock (0.00s)",
		"--- FAIL: TestCrash (1.00s)",
	}, "\n")))
	want := map[string]string{
		"TestFaults/hung": "FAIL", "TestFaults/wiped": "PASS", "TestFaults/clock": "SKIP", "TestCrash": "FAIL",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the results are %v, want %v", got, want)
	}
}

// TestBreaches reads the breaches of a run: the first one of each fault, once.
func TestBreaches(t *testing.T) {
	dir := t.TempDir()
	lines := "TestFaults/hung\t\"late\"\nTestFaults/hung\t\"lost\"\nTestCrash\t\"twice\"\n"
	testenv.Must(t, os.WriteFile(filepath.Join(dir, breachesFile), []byte(lines), 0o600))
	want := map[string]string{"TestFaults/hung": `"late"`, "TestCrash": `"twice"`}
	if got := takeBreaches(t, dir); !reflect.DeepEqual(got, want) {
		t.Errorf("the breaches are %q, want %q", got, want)
	}
	if got := takeBreaches(t, dir); got != nil {
		t.Errorf("the breaches of the next run are %q, want none", got)
	}
	for name, want := range map[string]string{
		"TestCrash": "TestCrash", "TestFaults/hung": "TestFaults/hung", "TestFaults/hung/alone": "TestFaults/hung",
	} {
		if got := faultOf(name); got != want {
			t.Errorf("the fault of %s is %s, want %s", name, got, want)
		}
	}
}
