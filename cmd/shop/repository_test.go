package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"example.com/shop/internal/testenv"
)

// The files repository_*_test.go check that the documents, the alerts and the imports agree with the
// program. These constants hold the names that they use. A copy of the module that uses other names changes them here.
// Each check fails if it finds nothing to compare.
const (
	metricPrefix = "shop_"
	optionPrefix = "SHOP_"

	readmeFile        = "README.md"
	docsFolder        = "docs"
	failuresFile      = "docs/failures.md"
	runbookFile       = "docs/runbook.md"
	configurationFile = "docs/configuration.md"

	// Each part has files of its own, which match these patterns.
	alertsFiles    = "observability/alerts*.yml"
	dashboardFiles = "observability/grafana/dashboards/*.json"
	composeFiles   = "docker-compose*.yml"
)

// readRepositoryFile returns the text of a file whose path is relative to the repository's root.
func readRepositoryFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repositoryRoot, path))
	testenv.Must(t, err)
	return string(text)
}

// repositoryFiles returns the paths that match a pattern, relative to the repository's root. There must be one.
func repositoryFiles(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := fs.Glob(os.DirFS(repositoryRoot), pattern)
	testenv.Must(t, err)
	if len(paths) == 0 {
		t.Fatalf("found no files %s", pattern)
	}
	return paths
}

// documents returns the paths of the README and of all documents, relative to the repository's root.
func documents(t *testing.T) []string {
	t.Helper()
	return append([]string{readmeFile}, repositoryFiles(t, docsFolder+"/*.md")...)
}

// submatches returns the first group of each match.
func submatches(re *regexp.Regexp, text string) []string {
	var first []string
	for _, m := range re.FindAllStringSubmatch(text, -1) {
		first = append(first, m[1])
	}
	return first
}
