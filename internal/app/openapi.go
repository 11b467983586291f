package app

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// MergeContracts merges pieces of an OpenAPI document. Each piece can add entries to paths, to the maps in
// components, and to the list tags. A part adds its figures to the properties of the schema Stats, and to the list of
// those that are required. Everything else may be in one piece only: that two pieces define the same name is an
// error. The entries are in the order of the pieces.
func MergeContracts(pieces ...[]byte) ([]byte, error) {
	var merged *yaml.Node
	for _, piece := range pieces {
		var doc yaml.Node
		if err := yaml.Unmarshal(piece, &doc); err != nil {
			return nil, fmt.Errorf("read a piece of the contract: %w", err)
		}
		if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
			return nil, fmt.Errorf("a piece of the contract is not a map: %.60q", piece)
		}
		if merged == nil {
			merged = doc.Content[0]
			continue
		}
		if err := mergeMaps(merged, doc.Content[0], ""); err != nil {
			return nil, err
		}
	}
	if merged == nil {
		return nil, nil
	}
	var text bytes.Buffer
	enc := yaml.NewEncoder(&text)
	enc.SetIndent(2)
	if err := enc.Encode(merged); err != nil {
		return nil, fmt.Errorf("write the contract: %w", err)
	}
	return text.Bytes(), nil
}

// mergeMaps adds the entries of the map from to the map into, which is at path in the document.
func mergeMaps(into, from *yaml.Node, path string) error {
	for i := 0; i < len(from.Content); i += 2 {
		key, value := from.Content[i], from.Content[i+1]
		at := path + "/" + key.Value
		have := entry(into, key.Value)
		switch {
		case have == nil:
			into.Content = append(into.Content, key, value)
		case isShared(at) && have.Kind == yaml.SequenceNode && value.Kind == yaml.SequenceNode:
			have.Content = append(have.Content, value.Content...)
		case isShared(at) && have.Kind == yaml.MappingNode && value.Kind == yaml.MappingNode:
			if err := mergeMaps(have, value, at); err != nil {
				return err
			}
		default:
			return fmt.Errorf("two pieces of the contract define %s", at)
		}
	}
	return nil
}

// isShared reports whether several pieces can have entries in the map or list at path.
func isShared(path string) bool {
	switch path {
	case "/tags", "/paths", "/components", "/components/schemas", "/components/responses", "/components/parameters",
		"/components/examples", "/components/headers", "/components/requestBodies", "/components/securitySchemes",
		"/components/schemas/Stats", "/components/schemas/Stats/properties", "/components/schemas/Stats/required":
		return true
	}
	return false
}

// entry returns the value of a key in a map, or nil.
func entry(m *yaml.Node, key string) *yaml.Node {
	for i := 0; i < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			return m.Content[i+1]
		}
	}
	return nil
}
