// Package web serves the pages. They are ES modules without a build step and without libraries, and they need no
// exception in the Content-Security-Policy.
package web

import (
	"embed"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/app"
	"example.com/shop/internal/rest"
)

//go:embed index.html
var shopPage string

//go:embed ops.html
var opsPage string

//go:embed assets
var assets embed.FS

// Extension is what another Go module adds to the pages.
type Extension struct {
	// Assets has the files in its folder assets. They are served at the same paths as those of this package, so that
	// scripts of both can import each other with relative paths.
	Assets fs.FS
	// Shop and Ops are the names of the scripts that the shop's page and the operators' page import.
	Shop, Ops []string
}

// marker is the line of a page that the server replaces by the lines of the extensions.
const marker = "  <!-- The server writes the scripts of other Go modules here. See Extension in web.go. -->\n"

// Part is the pages of a process: index.html, the shop, at /; ops.html, the operators' page, at /ops; and their files
// below /assets. Each file of an extension needs a name of its own.
func Part(extensions ...Extension) (app.Part, error) {
	add, err := routes(extensions)
	if err != nil {
		return app.Part{}, err
	}
	return app.Part{Routes: func(root, _ gin.IRouter) { add(root) }}, nil
}

func routes(extensions []Extension) (add func(gin.IRouter), err error) {
	files, err := join(extensions)
	if err != nil {
		return nil, err
	}
	var forShop, forOps []string
	for _, e := range extensions {
		forShop, forOps = append(forShop, e.Shop...), append(forOps, e.Ops...)
	}
	shop, err := page(shopPage, files, forShop)
	if err != nil {
		return nil, err
	}
	ops, err := page(opsPage, files, forOps)
	if err != nil {
		return nil, err
	}
	return func(root gin.IRouter) {
		root.Match(rest.ReadMethods, "/", shop)
		root.Match(rest.ReadMethods, "/ops", ops)
		root.Match(rest.ReadMethods, "/ops/", func(c *gin.Context) { c.Redirect(http.StatusPermanentRedirect, "/ops") })
		root.Match(rest.ReadMethods, "/assets/*file", func(c *gin.Context) {
			name := "assets" + c.Param("file")
			if files[name] == nil {
				rest.NoRoute(c)
				return
			}
			http.ServeFileFS(c.Writer, c.Request, files[name], name)
		})
	}, nil
}

// page returns the handler of a page, which also imports scripts of extensions.
func page(html string, files map[string]fs.FS, scripts []string) (gin.HandlerFunc, error) {
	var lines strings.Builder
	for _, script := range scripts {
		if files["assets/"+script] == nil {
			return nil, fmt.Errorf("an extension adds the script %s to a page, but no assets have it", script)
		}
		fmt.Fprintf(&lines, "  <link data-part rel=\"modulepreload\" href=\"/assets/%s\">\n", script)
	}
	text := strings.Replace(html, marker, lines.String(), 1)
	return func(c *gin.Context) {
		http.ServeContent(c.Writer, c.Request, "page.html", time.Time{}, strings.NewReader(text))
	}, nil
}

// join returns, for each file in the assets of this package and of the extensions, the file system that has the file.
// It returns an error if two of them have the same file.
func join(extensions []Extension) (map[string]fs.FS, error) {
	files := map[string]fs.FS{}
	for _, e := range append([]Extension{{Assets: assets}}, extensions...) {
		err := fs.WalkDir(e.Assets, "assets", func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			if files[name] != nil {
				return fmt.Errorf("two modules have the file %s: give one of the files another name", name)
			}
			files[name] = e.Assets
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("assets of the pages: %w", err)
		}
	}
	return files, nil
}
