package rest_test

import (
	"encoding/base64"
	"testing"

	"example.com/shop/internal/rest"
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
		c, err := rest.ParseCursor(text)
		if err != nil {
			return
		}
		again, err := rest.ParseCursor(c.String())
		if err != nil || again != c {
			t.Errorf("ParseCursor returns %v for %q, but %v, %v for its String %q", c, text, again, err, c)
		}
	})
}
