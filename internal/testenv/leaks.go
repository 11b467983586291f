package testenv

import "regexp"

// internals matches text that a service must not show to its clients: addresses, paths, and messages of drivers and
// libraries.
var internals = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+|\[::1\]|localhost|:\d{4,5}\b|` +
	`/(?:home|root|tmp|usr|var|go)/|\.go:\d+|goroutine|` +
	`\b(?:SQLSTATE|pgx|pgconn|gorm|go-redis|redis:|sql:|relation "|ERROR:|dial )|` +
	`i/o timeout|connection re(?:set|fused)`)

// FindLeak returns the first part of a response's body that reveals an internal detail of the service, or "".
func FindLeak(body []byte) string { return string(internals.Find(body)) }
