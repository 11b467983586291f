package web

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv/parttest"
)

// pages are the files of this folder.
var pages = os.DirFS(".")

// TestExtensions serves the pages with two extensions.
func TestExtensions(t *testing.T) {
	gifts := Extension{
		Assets: fstest.MapFS{
			"assets/gifts.js": {Data: []byte("gifts")}, "assets/gifts.css": {Data: []byte("red")},
			"secret": {Data: []byte("x")},
		},
		Shop: []string{"gifts.js"},
	}
	tills := Extension{
		Assets: fstest.MapFS{
			"assets/tills.js": {Data: []byte("tills")}, "assets/opstills.js": {Data: []byte("opstills")},
		},
		Shop: []string{"tills.js"}, Ops: []string{"opstills.js"},
	}
	line := func(name string) string {
		return `  <link data-part rel="modulepreload" href="/assets/` + name + `">` + "\n"
	}
	add, err := routes([]Extension{gifts, tills})
	if err != nil {
		t.Fatal(err)
	}
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	add(router)
	get := func(target string) *httptest.ResponseRecorder { return parttest.Send(t, router, "GET", target, "") }
	check := func(target, contentType, body string) {
		t.Helper()
		answer := get(target)
		got := answer.Header().Get("Content-Type")
		if answer.Code != http.StatusOK || got != contentType || answer.Body.String() != body {
			t.Errorf("GET %s is answered with %d %s:\n%s\nwant 200 %s:\n%s",
				target, answer.Code, got, answer.Body, contentType, body)
		}
	}
	for _, page := range []struct{ target, file, lines string }{
		{"/", "index.html", line("gifts.js") + line("tills.js")}, {"/ops", "ops.html", line("opstills.js")},
	} {
		html := read(t, pages, page.file)
		if n := strings.Count(html, marker); n != 1 {
			t.Errorf("%s has the marker %d times, want once", page.file, n)
		}
		check(page.target, "text/html; charset=utf-8", strings.Replace(html, marker, page.lines, 1))
	}
	check("/assets/dom.js", "text/javascript; charset=utf-8", read(t, assets, "assets/dom.js"))
	check("/assets/gifts.js", "text/javascript; charset=utf-8", "gifts")
	check("/assets/gifts.css", "text/css; charset=utf-8", "red")
	check("/assets/opstills.js", "text/javascript; charset=utf-8", "opstills")
	for _, target := range []string{"/assets/", "/assets/none.js", "/assets/../secret", "/secret"} {
		if answer := get(target); answer.Code != http.StatusNotFound {
			t.Errorf("GET %s is answered with %d, want 404", target, answer.Code)
		}
	}
}

// TestWrongExtensions checks that the pages are not served with an extension that does not fit.
func TestWrongExtensions(t *testing.T) {
	with := func(names ...string) Extension {
		files := fstest.MapFS{}
		for _, name := range names {
			files[name] = &fstest.MapFile{}
		}
		return Extension{Assets: files, Shop: []string{path.Base(names[0])}}
	}
	for name, test := range map[string]struct {
		extensions []Extension
		want       string // a part of the error
	}{
		"a file of the pages": {[]Extension{with("assets/gifts.js", "assets/style.css")}, "the file assets/style.css"},
		"a file of another extension": {
			[]Extension{with("assets/gifts.js"), with("assets/tills.js", "assets/gifts.js")},
			"the file assets/gifts.js",
		},
		"a script that does not exist": {
			[]Extension{with("assets/gifts.js"), {Assets: with("assets/till.js").Assets, Ops: []string{"tills.js"}}},
			"the script tills.js",
		},
		"no folder assets": {[]Extension{with("gifts.js")}, "assets"},
	} {
		if _, err := routes(test.extensions); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: the error is %v, want one with %q", name, err, test.want)
		}
	}
}

func read(t *testing.T, files fs.FS, name string) string {
	t.Helper()
	text, err := fs.ReadFile(files, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestMistypedAddresses asks for pages at addresses that do not exist, as a browser does and as a program does.
func TestMistypedAddresses(t *testing.T) {
	r := gin.New()
	r.RedirectTrailingSlash = false
	r.NoRoute(rest.NoRoute)
	add, err := routes(nil)
	if err != nil {
		t.Fatal(err)
	}
	add(r)
	for _, test := range []struct {
		path, accept string
		status       int
		header, want string
	}{
		{"/ops/", "text/html,*/*;q=0.8", http.StatusPermanentRedirect, "Location", "/ops"},
		{"/opps", "text/html,*/*;q=0.8", http.StatusNotFound, "Content-Type", "text/html; charset=utf-8"},
		{"/opps", "*/*", http.StatusNotFound, "Content-Type", "application/problem+json"},
		{"/api/opps", "text/html,*/*;q=0.8", http.StatusNotFound, "Content-Type", "application/problem+json"},
		{"/opps", "", http.StatusNotFound, "Content-Type", "application/problem+json"},
	} {
		answer := parttest.Send(t, r, "GET", test.path, "", "Accept: "+test.accept)
		if got := answer.Header().Get(test.header); answer.Code != test.status || got != test.want {
			t.Errorf("%s with Accept %q is answered with %d and %s %q, want %d and %q",
				test.path, test.accept, answer.Code, test.header, got, test.status, test.want)
		}
	}
}
