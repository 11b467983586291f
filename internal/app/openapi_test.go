package app_test

import (
	"strings"
	"testing"

	"example.com/shop/internal/app"
)

// TestMerge merges pieces, and rejects two that define the same.
func TestMerge(t *testing.T) {
	base := "openapi: 3.0.3\ntags: [{name: a}]\npaths:\n  /a: {get: {}}\ncomponents:\n  schemas:\n    A: {type: string}\n"
	merged, err := app.MergeContracts([]byte(base), []byte("tags: [{name: b}]\npaths:\n  /b: {get: {}}\ncomponents:\n  schemas:\n    B: {type: string}\n"))
	want := "openapi: 3.0.3\ntags: [{name: a}, {name: b}]\npaths:\n  /a: {get: {}}\n  /b: {get: {}}\ncomponents:\n  schemas:\n    A: {type: string}\n    B: {type: string}\n"
	if err != nil || string(merged) != want {
		t.Errorf("merged:\n%s%v\nwant:\n%s", merged, err, want)
	}
	merged, err = app.MergeContracts([]byte(base), []byte("components: {schemas: {Stats: {required: [a], properties: {a: {}}}}}"),
		[]byte("security: []\ninfo: {}\nx-more: 1"), []byte("components: {schemas: {Stats: {required: [b], properties: {b: {}}}}}"))
	want = "openapi: 3.0.3\ntags: [{name: a}]\npaths:\n  /a: {get: {}}\ncomponents:\n  schemas:\n    A: {type: string}\n" +
		"    Stats: {required: [a, b], properties: {a: {}, b: {}}}\nsecurity: []\ninfo: {}\nx-more: 1\n"
	if err != nil || string(merged) != want {
		t.Errorf("merged:\n%s%v\nwant the figures of both parts:\n%s", merged, err, want)
	}
	for piece, want := range map[string]string{
		"openapi: 3.1.0":                 "/openapi",
		"paths: {/a: {post: {}}}":        "/paths//a",
		"components: {schemas: {A: {}}}": "/components/schemas/A",
		"components: {schemas: [A]}":     "/components/schemas",
		"- a list":                       "not a map",
		"paths: {":                       "piece of the contract",
	} {
		if _, err := app.MergeContracts([]byte(base), []byte(piece)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with the piece %q the error is %v, want %q in it", piece, err, want)
		}
	}
}
