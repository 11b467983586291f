// Package web serves the pages. They are ES modules without a build step and without libraries, and they need no
// exception in the Content-Security-Policy.
package web

import (
	"embed"
	"io/fs"
	"net/http"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/app"
	"example.com/shop/internal/rest"
)

//go:embed *.html
var pages embed.FS

//go:embed assets
var assets embed.FS

// Add adds the pages to a process: the shop at /, the operators' page at /ops, and their files below /assets.
func Add(p *app.Process) {
	files, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) // unreachable: fs.Sub fails only if the directory's name is not valid
	}
	p.Routes(func(root, _ gin.IRouter) {
		root.Match(rest.ReadMethods, "/", page("index.html"))
		root.Match(rest.ReadMethods, "/ops", page("ops.html"))
		root.StaticFS("/assets", &gin.OnlyFilesFS{FileSystem: http.FS(files)})
	})
}

func page(name string) gin.HandlerFunc {
	return func(c *gin.Context) { http.ServeFileFS(c.Writer, c.Request, pages, name) }
}
