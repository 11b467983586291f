package rest

import (
	"fmt"
	"regexp"

	"go.yaml.in/yaml/v3"
)

// MergeContracts merges pieces of an OpenAPI document. Each piece can add entries to paths, to the maps in
// components, and to the list tags. A part adds its figures to the properties of the schema Stats, and to the list of
// its required properties. Everything else may be in one piece only, so that two pieces with one name are an error.
func MergeContracts(pieces ...[]byte) ([]byte, error) {
	merged := map[string]any{}
	for _, piece := range pieces {
		var doc map[string]any
		if err := yaml.Unmarshal(piece, &doc); err != nil {
			return nil, fmt.Errorf("read a piece of the contract: %w", err)
		}
		if err := mergeMaps(merged, doc, ""); err != nil {
			return nil, err
		}
	}
	return yaml.Marshal(merged)
}

func mergeMaps(into, from map[string]any, path string) error {
	for key, value := range from {
		at := path + "/" + key
		have, defined := into[key]
		haveMap, _ := have.(map[string]any)
		valueMap, _ := value.(map[string]any)
		haveList, _ := have.([]any)
		valueList, _ := value.([]any)
		switch {
		case !defined:
			into[key] = value
		case shared.MatchString(at) && haveList != nil && valueList != nil:
			into[key] = append(haveList, valueList...)
		case shared.MatchString(at) && haveMap != nil && valueMap != nil:
			if err := mergeMaps(haveMap, valueMap, at); err != nil {
				return err
			}
		default:
			return fmt.Errorf("two pieces of the contract define %s", at)
		}
	}
	return nil
}

// shared matches the paths of the maps and lists in which several pieces can have entries.
var shared = regexp.MustCompile(`^/(tags|paths|components(/\w+)?|components/schemas/Stats(/properties|/required)?)$`)
