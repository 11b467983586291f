package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
)

// The files repository_*_test.go check that the documents, the alerts, the images and the imports agree with the
// program. These constants hold the names that they use. A copy of the module that uses other names changes them here.
// Each check fails if it finds nothing to compare.
const (
	repositoryRoot = "../.."
	modulePath     = "example.com/shop"
	metricPrefix   = "shop_"
	optionPrefix   = "SHOP_"
	taskKind       = order.CancelKind

	readmeFile        = "README.md"
	docsFolder        = "docs"
	failuresFile      = "docs/failures.md"
	runbookFile       = "docs/runbook.md"
	configurationFile = "docs/configuration.md"
	alertsFile        = "observability/alerts.yml"
	dashboardFile     = "observability/grafana/dashboards/shop.json"
	composeFile       = "docker-compose.yml"
)

// readRepositoryFile returns the text of a file whose path is relative to the repository's root.
func readRepositoryFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repositoryRoot, path))
	testenv.Must(t, err)
	return string(text)
}

// documents returns the paths of the README and of all documents, relative to the repository's root.
func documents(t *testing.T) []string {
	t.Helper()
	docs, err := fs.Glob(os.DirFS(repositoryRoot), docsFolder+"/*.md")
	testenv.Must(t, err)
	if len(docs) == 0 {
		t.Fatalf("found no documents in %s", docsFolder)
	}
	return append([]string{readmeFile}, docs...)
}

// submatches returns the first group of each match.
func submatches(re *regexp.Regexp, text string) []string {
	var first []string
	for _, m := range re.FindAllStringSubmatch(text, -1) {
		first = append(first, m[1])
	}
	return first
}

// repeated returns the values that a list has more than once.
func repeated(list []string) []string {
	var again []string
	for i, value := range list {
		if slices.Contains(list[:i], value) {
			again = append(again, value)
		}
	}
	return again
}
