package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	cdplog "github.com/chromedp/cdproto/log"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

var screenshots = flag.String("screenshots", "", "the directory to write screenshots of the pages to, such as ../docs")

// notServed are paths that a page requests to learn whether the service has them. The files of the parts add theirs.
var notServed []string

// tab is a browser's tab with a page. It has its own cookies, so it is a customer of its own.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	expected [][]string // parts of the console errors that the test causes: an expected error contains all parts
	errors   []string   // the other console errors
}

// chromium returns the path of the browser, which has different names in different distributions. The one without
// windows comes first: a test of a page takes a third of the processor time with it.
func chromium() (path string, found bool) {
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, true
		}
	}
	return "", false
}

// browser starts the browser that all tests share. It ends after the last test.
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
		chromedp.UserDataDir(profile), chromedp.Env("TMPDIR="+profile), // Chromium leaves files in both directories
		chromedp.Flag("disable-gpu", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-quic", true)) // no requests of the browser itself
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // the sandbox does not work for root
	}
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ := chromedp.NewContext(allocator)
	testenv.AfterAll(func() error { end(); return nil })
	return ctx, chromedp.Do(ctx)
})

// needsBrowser skips a test if the machine has no browser, or if E2E_BASE_URL is set. Tests call it before they start
// anything, because starting takes time.
func needsBrowser(t *testing.T) {
	t.Helper()
	faulttest.NeedsProcesses(t)
	if _, found := chromium(); !found {
		testenv.Skip(t, "browser", "chromium is not in PATH (Debian: apt-get install chromium, or chromium-headless-shell, which is faster)")
	}
}

// open opens a page as a new customer. Each console error that the test does not expect fails the test when it ends. A
// violation of the Content-Security-Policy is a console error.
func open(t *testing.T, url string) *tab {
	t.Helper()
	browser, err := browser()
	testenv.Must(t, err)
	ctx, closeTab := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	p := &tab{t: t, ctx: ctx}
	t.Cleanup(func() {
		if t.Failed() {
			p.screenshot("failed")
			t.Logf("the text of %s at the end:\n%s", url, p.shown())
		}
		closeTab()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, e := range p.errors {
			t.Errorf("console of %s: %s", url, e)
		}
	})
	for _, path := range notServed {
		p.expect("404", path)
	}
	testenv.Must(t, chromedp.Listen(ctx, p.listen))
	p.do(chromedp.EmulateViewport(1280, 900), chromedp.Navigate(url))
	return p
}

func (p *tab) listen(event any) {
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		p.consoleError(fmt.Sprintf("exception %s %s", e.ExceptionDetails.Text, e.ExceptionDetails.Exception.Description))
	case *runtime.EventConsoleAPICalled:
		for _, arg := range e.Args {
			p.consoleError(fmt.Sprintf("%s %s %s", e.Type, arg.Description, arg.Value))
		}
	case *cdplog.EventEntryAdded:
		if e.Entry.Level == cdplog.EntryLevelError || e.Entry.Level == cdplog.EntryLevelWarning {
			p.consoleError(fmt.Sprintf("%s %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL))
		}
	}
}

func (p *tab) consoleError(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, parts := range p.expected {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) }) {
			return
		}
	}
	p.errors = append(p.errors, text)
}

// expect makes the tab ignore console errors that contain all parts.
func (p *tab) expect(parts ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = append(p.expected, parts)
}

func (p *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	value(p, chromedp.Steps(steps...))
}

// value runs an action in a tab and returns its result.
func value[T any](p *tab, action chromedp.Action[T]) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, faulttest.Patience)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		p.t.Fatal(err)
	}
	return v
}

// text returns the text of an element, or "" if there is no such element.
func (p *tab) text(selector string) string {
	p.t.Helper()
	return read[string](p, fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ""`, selector))
}

// read evaluates an expression that changes nothing. It does so again if the browser loads another document meanwhile.
func read[T any](p *tab, expression string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, faulttest.Patience)
	defer cancel()
	for {
		v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
		if err == nil {
			return v
		}
		if !strings.Contains(err.Error(), "navigated") || !faulttest.Sleep(ctx, 50*time.Millisecond) {
			p.t.Fatal(err)
		}
	}
}

// waitFor waits until an element's text contains a text.
func (p *tab) waitFor(selector, text string) {
	p.t.Helper()
	p.until(fmt.Sprintf("%q in %s", text, selector), func() bool { return strings.Contains(p.text(selector), text) })
}

// until is eventually for a page. If the condition does not hold, the test shows the page's text when it ends.
func (p *tab) until(condition string, holds func() bool) {
	p.t.Helper()
	faulttest.Eventually(p.t, condition+", on the page", holds)
}

func (p *tab) click(selector string) {
	p.t.Helper()
	p.do(chromedp.Click(chromedp.CSS(selector), chromedp.NodeEnabled))
}

// count counts the elements that match a selector.
func (p *tab) count(selector string) int {
	p.t.Helper()
	return read[int](p, fmt.Sprintf(`document.querySelectorAll(%q).length`, selector))
}

// screenshot writes a screenshot of the whole page, if -screenshots is set.
func (p *tab) screenshot(name string) {
	if *screenshots == "" {
		return
	}
	size := value(p, chromedp.Evaluate[[2]int64](`[window.innerWidth, document.scrollingElement.scrollHeight]`))
	p.do(chromedp.EmulateViewport(size[0], size[1])) // the whole page fits, so the drawer at the bottom of the window covers nothing
	ctx, cancel := context.WithTimeout(p.ctx, faulttest.Patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err := errors.Join(err, os.WriteFile(filepath.Join(*screenshots, name+".png"), png, 0o644)); err != nil {
		p.t.Errorf("write a screenshot: %v", err)
	}
}

// shown returns the text of the page, or why there is none.
func (p *tab) shown() string {
	ctx, cancel := context.WithTimeout(p.ctx, faulttest.Patience)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText`))
	if err != nil {
		return err.Error()
	}
	return text
}

// script runs a script at the start of every document that the tab loads from now on.
func (p *tab) script(source string) {
	p.t.Helper()
	p.do(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, cdppage.AddScriptToEvaluateOnNewDocument, cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: source})
		return err
	}))
}

// markDocument marks the document, and returns a function that reports whether the mark is still there: a reload would
// remove it.
func (p *tab) markDocument() (marked func() bool) {
	p.t.Helper()
	value(p, chromedp.Evaluate[bool](`window.mark = true`))
	return func() bool { return value(p, chromedp.Evaluate[bool](`window.mark === true`)) }
}

// front shows the tab instead of the tab that is shown now. A page that is not shown gets no notifications.
func (p *tab) front() {
	p.t.Helper()
	p.do(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, cdppage.BringToFront, cdp.Empty{})
		return err
	}))
}
