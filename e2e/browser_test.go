package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	cdplog "github.com/chromedp/cdproto/log"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"example.com/shop/internal/testenv"
)

var screenshots = flag.String("screenshots", "", "a directory to keep screenshots of the pages in, such as ../docs")

// tab is a page that a customer of its own looks at.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	expected []string // parts of console errors that the test brings about
	errors   []string
}

// chromium finds the browser under the names that distributions give it.
func chromium() (path string, found bool) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, true
		}
	}
	return "", false
}

// browser starts the browser that all tests share. It ends when they have run.
var browser = sync.OnceValues(func() (context.Context, error) {
	path, _ := chromium()
	dir, err := testenv.TempDir()
	if err != nil {
		return nil, err
	}
	profile := filepath.Join(dir, "browser")
	if err := os.Mkdir(profile, 0o700); err != nil {
		return nil, err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path),
		chromedp.UserDataDir(profile), chromedp.Env("TMPDIR="+profile), // it leaves things in both
		chromedp.Flag("disable-gpu", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-quic", true)) // quiet about the world outside
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // which does not work for root
	}
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ := chromedp.NewContext(allocator)
	testenv.AfterAll(func() error { end(); return nil })
	return ctx, chromedp.Do(ctx)
})

// needsBrowser skips a test that the machine, or the site at E2E_BASE_URL, has no browser for. It comes first: what
// else such a test starts takes time.
func needsBrowser(t *testing.T) {
	t.Helper()
	needsProcesses(t)
	if _, found := chromium(); !found {
		testenv.Skip(t, "browser", "no chromium in PATH (Debian: apt-get install chromium)")
	}
}

// open opens a page as a new customer, who shares nothing with the others. At its end the test fails for every error
// that the page's console has, violations of its Content-Security-Policy among them.
func open(t *testing.T, url string) *tab {
	t.Helper()
	browser, err := browser()
	must(t, err)
	ctx, closeTab := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	p := &tab{t: t, ctx: ctx}
	t.Cleanup(func() {
		if t.Failed() {
			p.keep("failed")
		}
		closeTab()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, e := range p.errors {
			t.Errorf("console of %s: %s", url, e)
		}
	})
	must(t, chromedp.Listen(ctx, p.listen))
	p.do(chromedp.EmulateViewport(1280, 900), chromedp.Navigate(url))
	return p
}

func (p *tab) listen(event any) {
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		p.complain(fmt.Sprintf("exception %s %s", e.ExceptionDetails.Text, e.ExceptionDetails.Exception.Description))
	case *runtime.EventConsoleAPICalled:
		for _, arg := range e.Args {
			p.complain(fmt.Sprintf("%s %s %s", e.Type, arg.Description, arg.Value))
		}
	case *cdplog.EventEntryAdded:
		if e.Entry.Level == cdplog.EntryLevelError || e.Entry.Level == cdplog.EntryLevelWarning {
			p.complain(fmt.Sprintf("%s %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL))
		}
	}
}

func (p *tab) complain(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, part := range p.expected {
		if strings.Contains(text, part) {
			return
		}
	}
	p.errors = append(p.errors, text)
}

// expect says that the console will have errors with this text.
func (p *tab) expect(part string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = append(p.expected, part)
}

func (p *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	value(p, chromedp.Steps(steps...))
}

// value does something in a tab and returns what it gives.
func value[T any](p *tab, action chromedp.Action[T]) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		p.t.Fatal(err)
	}
	return v
}

// text is what a part of the page says, "" while there is no such part.
func (p *tab) text(selector string) string {
	p.t.Helper()
	return value(p, chromedp.Evaluate[string](fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ""`, selector)))
}

// says waits until a part of the page says something.
func (p *tab) says(selector, text string) {
	p.t.Helper()
	p.until(fmt.Sprintf("%q in %s", text, selector), func() bool { return strings.Contains(p.text(selector), text) })
}

// until waits for a state of the page, and shows the page if it is not reached.
func (p *tab) until(what string, reached func() bool) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !reached() {
		select {
		case <-ctx.Done():
			p.t.Fatalf("never reached: %s; the page says:\n%s", what, p.text("body"))
		case <-tick.C:
		}
	}
}

func (p *tab) click(selector string) {
	p.t.Helper()
	p.do(chromedp.Click(chromedp.CSS(selector), chromedp.NodeEnabled))
}

// count counts the elements that a selector finds.
func (p *tab) count(selector string) int {
	p.t.Helper()
	return value(p, chromedp.Evaluate[int](fmt.Sprintf(`document.querySelectorAll(%q).length`, selector)))
}

// keep writes a screenshot of the whole page, if screenshots are to be kept.
func (p *tab) keep(name string) {
	if *screenshots == "" {
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err := errors.Join(err, os.WriteFile(filepath.Join(*screenshots, name+".png"), png, 0o644)); err != nil {
		p.t.Errorf("keep a screenshot: %v", err)
	}
}

// script has every document that the tab loads from now on begin with a script.
func (p *tab) script(source string) {
	p.t.Helper()
	p.do(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, cdppage.AddScriptToEvaluateOnNewDocument, cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: source})
		return err
	}))
}

// notReloaded marks the page, and returns a function that tells whether the mark is still there.
func (p *tab) notReloaded() func() bool {
	p.t.Helper()
	value(p, chromedp.Evaluate[bool](`window.mark = true`))
	return func() bool { return value(p, chromedp.Evaluate[bool](`window.mark === true`)) }
}
