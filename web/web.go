// Package web holds the pages, embedded in the binary. They are written by hand and served as they are:
// ES modules, no library, nothing that the Content-Security-Policy would have to make an exception for.
package web

import (
	"embed"
	"io/fs"
)

// Pages are the documents.
//
//go:embed *.html
var Pages embed.FS

//go:embed assets
var assets embed.FS

// Assets returns what the pages load, below /assets.
func Assets() fs.FS {
	sub, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) // the name is not valid
	}
	return sub
}
