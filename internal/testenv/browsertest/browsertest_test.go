package browsertest_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/browsertest"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// recorder is a testing.TB that records errors instead of failing the test.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

// good is a page without a fault. It has a text that only screen readers read, and a link that shows when it has the
// focus.
const good = `<!DOCTYPE html><html lang="en"><title>a page</title>
<style>
	:root { color-scheme: light dark; background: Canvas }
	.clipped { position: absolute; width: 1px; height: 1px; overflow: hidden; color: #fff; background: #fff }
	.skip { position: absolute; left: -999px; color: #fff; background: #fff }
</style>
<header><a class="skip" href="#main">Skip</a></header><nav>A menu</nav>
<main id="main">
	<h1>A page</h1><p class="clipped">For screen readers</p>
	<button disabled style="color: #fff; background: #fff">Off</button><button>On</button>
</main>
<footer>The end</footer>`

// TestCheckLook breaks a good page in one way after the other.
func TestCheckLook(t *testing.T) {
	browsertest.Need(t)
	testenv.Slow(t, "pages in a browser")
	for name, test := range map[string]struct{ old, new, want string }{
		"good": {"", "", ""},
		"grey on white": {`<h1>`, `<p style="color: #999; background: #fff">pale</p><h1>`,
			"contrast: 2.85 of 4.5: pale"},
		"poor in the dark":    {`<h1>`, `<p style="color: #444">night</p><h1>`, "-dark: too little contrast"},
		"wide":                {`<h1>`, `<p style="width: 600px">wide</p><h1>`, "-phone: the page is"},
		"button without name": {`<h1>`, `<button></button><h1>`, "a button without a name"},
		"image without name":  {`<h1>`, `<svg role="img"></svg><h1>`, "a image without a name"},
		"no footer":           {`<footer>`, `<p>`, "0 elements of the role contentinfo, want 1"},
		"two titles":          {`<h1>`, `<h1>One</h1><h1>`, "2 headings of level one, want 1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &recorder{TB: t}
			page := browsertest.New(r)
			page.Navigate("data:text/html," + url.PathEscape(strings.Replace(good, test.old, test.new, 1)))
			page.CheckLook("page")
			found := func(e string) bool { return strings.Contains(e, test.want) }
			switch {
			case test.want == "" && len(r.errors) > 0:
				t.Errorf("a good page has the faults %q", r.errors)
			case test.want != "" && !slices.ContainsFunc(r.errors, found):
				t.Errorf("the faults are %q, want one with %q", r.errors, test.want)
			}
		})
	}
}

// TestConsoleErrors checks that an error of a page's script fails the test, unless the test expects it.
func TestConsoleErrors(t *testing.T) {
	browsertest.Need(t)
	testenv.Slow(t, "pages in a browser")
	const page = `data:text/html,<h1>A page</h1><script>console.error('lost', 7); throw new Error('broken')</script>`
	var failed, expected recorder
	t.Run("tabs", func(t *testing.T) {
		failed.TB, expected.TB = t, t
		tab := browsertest.New(&failed)
		tab.Navigate(page)
		tab.WaitFor("h1", "A page")
		tab = browsertest.New(&expected)
		tab.Expect("error", "lost")
		tab.Expect("error", "7")
		tab.Expect("broken")
		tab.Navigate(page)
		tab.WaitFor("h1", "A page")
	})
	if len(failed.errors) < 2 || !strings.Contains(strings.Join(failed.errors, "\n"), "Error: broken") {
		t.Errorf("the errors are %q, want those of the console and of the script", failed.errors)
	}
	if len(expected.errors) > 0 {
		t.Errorf("expected errors are reported: %q", expected.errors)
	}
}
