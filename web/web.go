// Package web serves the pages. They are ES modules without a build step and without libraries, and they need no
// exception in the Content-Security-Policy.
package web

import (
	"embed"
	"io/fs"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/app"
	"example.com/shop/internal/rest"
)

//go:embed *.html
var pages embed.FS

//go:embed assets
var assets embed.FS

// Add adds the pages to a process: the shop, index.html, at /, the operators' page, ops.html, at /ops, and their files
// below /assets.
func Add(p *app.Process) {
	files, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) // unreachable: fs.Sub fails only if the directory's name is not valid
	}
	names, err := fs.Glob(pages, "*.html")
	if err != nil {
		panic(err) // unreachable: fs.Glob fails only if the pattern is not valid
	}
	p.Add(app.Part{Routes: func(root, _ gin.IRouter) {
		for _, name := range names {
			root.Match(rest.ReadMethods, pagePath(name), page(name))
		}
		root.StaticFS("/assets", &gin.OnlyFilesFS{FileSystem: http.FS(files)})
	}})
}

// pagePath returns the path of the page in the named file.
func pagePath(name string) string {
	if name == "index.html" {
		return "/"
	}
	return "/" + strings.TrimSuffix(name, ".html")
}

func page(name string) gin.HandlerFunc {
	return func(c *gin.Context) { http.ServeFileFS(c.Writer, c.Request, pages, name) }
}
