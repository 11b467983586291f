package rest_test

import (
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
)

// TestMerge merges pieces, and rejects two that define the same.
func TestMerge(t *testing.T) {
	base := "openapi: 3.0.3\ntags: [{name: a}]\npaths:\n  /a: {get: {}}\ncomponents:\n  schemas:\n    A: {type: " +
		"string}\n"
	for _, test := range []struct {
		pieces []string
		want   string
	}{
		{[]string{"tags: [{name: b}]\npaths:\n  /b: {get: {}}\ncomponents:\n  schemas:\n    B: {type: string}\n"},
			"{openapi: 3.0.3, tags: [{name: a}, {name: b}], paths: {/a: {get: {}}, /b: {get: {}}}, " +
				"components: {schemas: {A: {type: string}, B: {type: string}}}}"},
		{[]string{"components: {schemas: {Stats: {required: [a], properties: {a: {}}}}}",
			"security: []\ninfo: {}\nx-more: 1",
			"components: {schemas: {Stats: {required: [b], properties: {b: {}}}}}"},
			"{openapi: 3.0.3, info: {}, security: [], x-more: 1, tags: [{name: a}], paths: {/a: {get: {}}}, " +
				"components: {schemas: {A: {type: string}, Stats: {required: [a, b], properties: {a: {}, b: {}}}}}}"},
	} {
		pieces := [][]byte{[]byte(base)}
		for _, piece := range test.pieces {
			pieces = append(pieces, []byte(piece))
		}
		merged, err := rest.MergeContracts(pieces...)
		testenv.Must(t, err)
		var got, want any
		testenv.Must(t, yaml.Unmarshal(merged, &got))
		testenv.Must(t, yaml.Unmarshal([]byte(test.want), &want))
		if !reflect.DeepEqual(got, want) {
			t.Errorf("merged:\n%s\nwant what is in\n%s", merged, test.want)
		}
	}
	for piece, want := range map[string]string{
		"openapi: 3.1.0":                 "/openapi",
		"paths: {/a: {post: {}}}":        "/paths//a",
		"components: {schemas: {A: {}}}": "/components/schemas/A",
		"components: {schemas: [A]}":     "/components/schemas",
		"- a list":                       "piece of the contract",
		"paths: {":                       "piece of the contract",
	} {
		if _, err := rest.MergeContracts([]byte(base), []byte(piece)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("with the piece %q the error is %v, want %q in it", piece, err, want)
		}
	}
}
