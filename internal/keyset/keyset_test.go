package keyset_test

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/keyset"
)

// FuzzCursor checks that a cursor that parses has a String that parses to the same cursor.
func FuzzCursor(f *testing.F) {
	for _, text := range []string{"", "1", "1 ", " 0198", "1738314000000000 01900000-0000-7000-8000-000000000001",
		"-1 01900000-0000-7000-8000-000000000001", "99999999999999999999 01900000-0000-7000-8000-000000000001",
		"9223372036854775807 01900000-0000-7000-8000-000000000001", "1 01900000-0000-7000-8000-000000000001 "} {
		f.Add(base64.RawURLEncoding.EncodeToString([]byte(text)))
	}
	f.Add("%")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := keyset.ParseCursor(text)
		if err != nil {
			return
		}
		again, err := keyset.ParseCursor(c.String())
		if err != nil || again != c {
			t.Errorf("ParseCursor returns %v for %q, but %v, %v for its String %q", c, text, again, err, c)
		}
	})
}

// TestParseIDs checks that only the canonical form of a UUID is the id of a row: the same UUID in another form would
// be a second name of the row.
func TestParseIDs(t *testing.T) {
	first, second := keyset.NewID(), uuid.New()
	text := first.String()
	others := []string{"", "no uuid", strings.ToUpper(text), "{" + text + "}", "urn:uuid:" + text,
		strings.ReplaceAll(text, "-", ""), text + " "}
	rows, foreign := keyset.ParseIDs(slices.Concat([]string{text}, others, []string{second.String()}))
	if want := []uuid.UUID{first, second}; !slices.Equal(rows, want) {
		t.Errorf("ids of rows are %v, want %v", rows, want)
	}
	if !slices.Equal(foreign, others) {
		t.Errorf("foreign ids are %q, want %q", foreign, others)
	}
	if rows, foreign := keyset.ParseIDs(nil); rows == nil || len(rows) > 0 || len(foreign) > 0 {
		t.Errorf("without ids: %v, %v; want an empty list that is not nil, which the driver sends as an empty array",
			rows, foreign)
	}
}

// TestNewIDsSort checks that ids sort by the time of their creation.
func TestNewIDsSort(t *testing.T) {
	ids := make([]string, 100)
	for i := range ids {
		ids[i] = keyset.NewID().String()
	}
	if !slices.IsSorted(ids) {
		t.Errorf("these ids are not sorted by the time of their creation: %q", ids)
	}
}
