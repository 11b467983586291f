// Package web embeds the pages in the binary. They are ES modules without a build step and without libraries, and they
// need no exception in the Content-Security-Policy.
package web

import (
	"embed"
	"io/fs"
)

// Pages holds the HTML documents, index.html and ops.html.
//
//go:embed *.html
var Pages embed.FS

//go:embed assets
var assets embed.FS

// Assets returns the files that the pages load from /assets.
func Assets() fs.FS {
	sub, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) // unreachable: fs.Sub fails only if the directory's name is not valid
	}
	return sub
}
