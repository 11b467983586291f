// Package clip shortens texts.
package clip

import "strings"

// Text shortens a text to at most limit bytes and an ellipsis, so that the text of a client or of another server fills
// neither a log nor a table. It leaves valid UTF-8 valid.
func Text(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "…"
}
