// Package web holds the pages, embedded in the binary.
package web

import "embed"

// Files are the pages and what they load.
//
//go:embed index.html
var Files embed.FS
