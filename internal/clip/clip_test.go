package clip_test

import (
	"testing"

	"example.com/shop/internal/clip"
)

func TestText(t *testing.T) {
	for _, test := range []struct {
		text  string
		limit int
		want  string
	}{
		{"", 3, ""},
		{"abc", 3, "abc"},
		{"abcd", 3, "abc…"},
		{"aäb", 3, "aä…"},
		{"abä", 3, "ab…"}, // ä has two bytes, of which only one is within the limit
	} {
		if got := clip.Text(test.text, test.limit); got != test.want {
			t.Errorf("Text(%q, %d) is %q, want %q", test.text, test.limit, got, test.want)
		}
	}
}
