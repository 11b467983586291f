package faulttest

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"example.com/shop/internal/testenv"
)

var brokenAll = flag.Bool("broken.all", false, "test each broken service with all faults that are named for it")

// brokenService is a service whose program breaks the promise on purpose, and whose tables have no constraints that
// would hide that.
type brokenService struct {
	name, rule string
	changes    []change
	caughtBy   []string // the faults that must fail, the fastest one first
	others     string   // why other faults cannot show it, or show it by chance only
}

// change replaces lines of one file of the program. The first and the last line may be parts of lines.
type change struct {
	in       string // a text of the file; "": the lines to replace suffice to find it
	old, new []string
}

// Broken tests broken services: a fault test that catches none proves nothing. The file broken.txt beside the tests
// describes them, as scripts/mutants describes mutants. A block may have several changes. Its faults are named after
// "caught by:", as tests or subtests; a name that ends with /* stands for all subtests. "others:" says why the other
// faults cannot show the mistake.
//
// The tests of a broken service run in a process of their own. Its program is built from the changed files of the
// repository at root. Its databases have no CHECK constraints, and no unique constraints of [Service.Table]. Each fault
// that is named for it must fail. Without the flag -broken.all only the first one is tried.
func Broken(t *testing.T, s *Service, root string) {
	list, err := readBroken("broken.txt")
	testenv.Must(t, err)
	files, err := sources(root)
	testenv.Must(t, err)
	tests, err := exec.CommandContext(t.Context(), os.Args[0], "-test.list=.").Output()
	testenv.Must(t, err)
	overlays := make([]map[string]string, len(list))
	for i, b := range list {
		testenv.Must(t, b.check(strings.Fields(string(tests))))
		overlays[i], err = b.apply(files)
		testenv.Must(t, err)
	}
	testenv.Slow(t, "tests of services that are broken on purpose")
	NeedsProcesses(t)
	atOnce := make(chan struct{}, 4) // each runs one fault
	if *brokenAll {
		atOnce = make(chan struct{}, 1) // each runs some faults at the same time
	}
	for i, b := range list {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			atOnce <- struct{}{}
			defer func() { <-atOnce }()
			t.Logf("it breaks %s; the other faults: %s", b.rule, b.others)
			dir := t.TempDir()
			testenv.Must(t, s.buildBroken(dir, overlays[i]))
			b.run(t, dir)
		})
	}
}

// readBroken reads a list of broken services.
func readBroken(path string) (list []brokenService, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for i, line := range strings.Split(string(text), "\n") {
		word, rest, _ := strings.Cut(line, " ")
		known := true
		switch {
		case line == "":
		case word == "broken:":
			list = append(list, brokenService{name: rest})
		case len(list) == 0:
			known = false
		default:
			known = list[len(list)-1].read(word, rest)
		}
		if !known {
			return nil, fmt.Errorf("%s:%d: want a line that begins with broken:, breaks:, in:, -, +, caught by: or "+
				"others:, and broken: first, found %q", path, i+1, line)
		}
	}
	return list, nil
}

// read reads a line of a description, which begins with a word. It reports whether it knows the word.
func (b *brokenService) read(word, rest string) (known bool) {
	last := len(b.changes) - 1
	switch {
	case word == "breaks:":
		b.rule = rest
	case word == "in:":
		b.changes = append(b.changes, change{in: rest})
	case word == "-" && (last < 0 || b.changes[last].new != nil):
		b.changes = append(b.changes, change{old: []string{rest}})
	case word == "-":
		b.changes[last].old = append(b.changes[last].old, rest)
	case word == "+" && last >= 0:
		b.changes[last].new = append(b.changes[last].new, rest)
	case word == "caught":
		b.caughtBy = strings.Fields(strings.TrimPrefix(rest, "by:"))
	case word == "others:":
		b.others = rest
	default:
		return false
	}
	return true
}

// check checks that the description of a broken service is complete, and that its faults belong to the tests.
func (b brokenService) check(tests []string) error {
	for _, fault := range b.caughtBy {
		test, _, _ := strings.Cut(fault, "/")
		if !slices.Contains(tests, test) {
			return fmt.Errorf("broken service %q: there is no test %s", b.name, test)
		}
	}
	if b.rule == "" || len(b.changes) == 0 || len(b.caughtBy) == 0 || b.others == "" {
		return fmt.Errorf("broken service %q: want lines that begin with breaks:, -, caught by:, others: each",
			b.name)
	}
	return nil
}

// sources returns the contents of the program's files by their absolute paths.
func sources(root string) (files map[string]string, err error) {
	files = map[string]string{}
	root, err = filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	return files, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bench"):
			return fs.SkipDir
		case entry.IsDir() || strings.HasSuffix(path, "_test.go"),
			!slices.Contains([]string{".go", ".sql", ".lua"}, filepath.Ext(path)):
			return nil
		}
		text, err := os.ReadFile(path)
		files[path] = string(text)
		return err
	})
}

// apply returns the contents of the changed files by their paths. Each change must fit exactly one place.
func (b brokenService) apply(files map[string]string) (changed map[string]string, err error) {
	changed = map[string]string{}
	for _, c := range b.changes {
		old := strings.Join(c.old, "\n")
		var places []string
		for path, text := range files {
			if strings.Contains(text, c.in) {
				places = append(places, slices.Repeat([]string{path}, strings.Count(text, old))...)
			}
		}
		if len(places) != 1 {
			return nil, fmt.Errorf("broken service %q: want the text %q in one place, found it in %d: %q",
				b.name, old, len(places), places)
		}
		path := places[0]
		changed[path] = strings.Replace(cmp.Or(changed[path], files[path]), old, strings.Join(c.new, "\n"), 1)
	}
	return changed, nil
}

// envBroken names the folder of the broken service that the tests of this process test. "": the service is not broken.
const envBroken = "FAULTTEST_BROKEN"

func isBroken() bool { return os.Getenv(envBroken) != "" }

// buildBroken builds the program of a broken service into a folder.
func (s *Service) buildBroken(dir string, changed map[string]string) error {
	replace := map[string]string{}
	for i, path := range slices.Sorted(maps.Keys(changed)) {
		replace[path] = filepath.Join(dir, fmt.Sprintf("%d%s", i, filepath.Ext(path)))
		if err := os.WriteFile(replace[path], []byte(changed[path]), 0o600); err != nil {
			return err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace}) // as go build wants it
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, overlay, 0o600); err != nil {
		return err
	}
	return s.goBuild(filepath.Join(dir, s.Program), "-overlay", path)
}

// removeConstraints removes from a database the constraints that would hide that a service is broken.
func (s *Service) removeConstraints(ctx context.Context, db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}) error {
	if !isBroken() {
		return nil
	}
	// An index without the constraint takes the place of a unique one, because a service may look for it by its name.
	_, err := db.ExecContext(ctx, `DO $$ DECLARE c record; BEGIN
		FOR c IN SELECT conrelid::regclass AS rel, conname, CASE contype WHEN 'u' THEN
				replace(pg_get_indexdef(conindid), 'CREATE UNIQUE INDEX', 'CREATE INDEX') ELSE '' END AS index
			FROM pg_constraint
			WHERE connamespace = 'public'::regnamespace AND conrelid <> 0
			  AND (contype = 'c' OR contype = 'u' AND conrelid = '`+s.Table+`'::regclass)
		LOOP
			EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', c.rel, c.conname);
			EXECUTE c.index;
		END LOOP;
	END $$`)
	return err
}

// breach reports that the service under test has not kept the promise, or a bound. The process of a broken service also
// writes it into a file, because only such a failure shows that the test has caught the service.
func breach(t testing.TB, format string, args ...any) {
	t.Helper()
	message := fmt.Sprintf(format, args...)
	t.Error(message)
	dir := os.Getenv(envBroken)
	if dir == "" {
		return
	}
	f, err := os.OpenFile(filepath.Join(dir, breachesFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	testenv.Must(t, err)
	defer f.Close()
	_, err = fmt.Fprintf(f, "%s\t%q\n", faultOf(t.Name()), message)
	testenv.Must(t, err)
}

// fatalBreach is [breach] after which the test ends.
func fatalBreach(t testing.TB, format string, args ...any) {
	t.Helper()
	breach(t, format, args...)
	t.FailNow()
}

// breachesFile is the file in the folder of a broken service with the breaches: in each line the name of a fault and a
// message.
const breachesFile = "breaches"

// faultOf returns the name of a fault, which is a test or a subtest, from that of a part of it.
func faultOf(name string) string {
	parts := strings.SplitN(name, "/", 3)
	return strings.Join(parts[:min(2, len(parts))], "/")
}

// run runs the faults of a broken service in a process of their own. Each of them must catch it or be skipped.
func (b brokenService) run(t *testing.T, dir string) {
	t.Helper()
	faults := b.caughtBy
	if !*brokenAll {
		faults = faults[:1]
	}
	patterns := make([]string, len(faults))
	for i, fault := range faults {
		for j, name := range strings.Split(strings.TrimSuffix(fault, "/*"), "/") {
			if j > 0 {
				patterns[i] += "/"
			}
			patterns[i] += "^" + regexp.QuoteMeta(name) + "$"
		}
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.count=1", "-test.timeout=30m",
		"-test.run="+strings.Join(patterns, "|"))
	cmd.Env = append(os.Environ(), "TEST_ALL=1", envBroken+"="+dir)
	out, err := cmd.CombinedOutput()
	exit := new(exec.ExitError)
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	// A program that does not start is not caught, and a wrong statement proves nothing about the promise.
	for _, wrong := range []string{"before it served", "syntax error at", "\npanic: "} {
		if i := bytes.Index(out, []byte(wrong)); i >= 0 {
			t.Errorf("the tests did not run as they should: …%s", out[max(0, i-2000):min(len(out), i+2000)])
		}
	}
	breaches, err := os.ReadFile(filepath.Join(dir, breachesFile))
	if !errors.Is(err, fs.ErrNotExist) {
		testenv.Must(t, err)
	}
	result := regexp.MustCompile(`(?m)^ *--- (PASS|FAIL|SKIP): ([^/ ]+(?:/[^/ ]+)?) \(`)
	ran := map[string]bool{}
	for _, m := range result.FindAllStringSubmatch(string(out), -1) {
		name := m[2]
		group, _, isSub := strings.Cut(name, "/")
		if !isSub && strings.Contains(string(out), ": "+name+"/") {
			continue // its subtests are the faults
		}
		ran[name], ran[group+"/*"] = true, true
		_, message, caught := strings.Cut("\n"+string(breaches), "\n"+name+"\t")
		switch {
		case caught:
			message, _, _ = strings.Cut(message, "\n")
			t.Logf("%s: %.300s", name, message)
		case m[1] == "SKIP":
			t.Logf("%s was skipped", name)
		default:
			t.Errorf("%s has not caught the broken service: %s", name, m[1])
		}
	}
	for _, fault := range faults {
		if !ran[fault] {
			t.Errorf("%s has not run:\n%s", fault, out[max(0, len(out)-4000):])
		}
	}
}
