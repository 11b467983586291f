package testenv

import "regexp"

// inside are things that only this side of the service knows: addresses, paths, and what drivers and libraries say.
var inside = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+|\[::1\]|localhost|:\d{4,5}\b|` +
	`/(?:home|root|tmp|usr|var|go)/|\.go:\d+|goroutine|` +
	`\b(?:SQLSTATE|pgx|pgconn|gorm|go-redis|redis:|sql:|relation "|ERROR:|dial )|i/o timeout|connection re(?:set|fused)`)

// Inside returns the first part of an answer that no client should be told, or "".
func Inside(answer []byte) string { return string(inside.Find(answer)) }
