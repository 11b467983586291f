// Package browsertest shows web pages to tests in Chromium. A test opens a [Tab], does in it what a user does, and
// waits for what the page should show. [Tab.CheckLook] checks what holds for every page: names for its controls,
// enough contrast, and no page wider than the screen.
//
// The tabs of all tests of a binary share one browser, which ends after the last test. So the TestMain of a package
// that uses browsertest must call [testenv.Main]. With -screenshots DIR the tests write pictures of the pages.
package browsertest

import (
	"context"
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
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"example.com/shop/internal/testenv"
)

var screenshots = flag.String("screenshots", "", "the directory to write screenshots of the pages to, such as ../docs")

// patience is how long a tab waits for what takes a second on an idle machine, because the machine may be under heavy
// load.
const patience = 3 * time.Minute

// chromium returns the path of the browser, which has different names in different distributions. The browser without
// windows comes first, because a test of a page takes a third of the processor time with it.
func chromium() (path string, found bool) {
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, true
		}
	}
	return "", false
}

// Need skips a test if the machine has no browser. Tests call it before they start what the page needs, because that
// takes time.
func Need(t testing.TB) {
	t.Helper()
	if _, found := chromium(); !found {
		testenv.Skip(t, "browser",
			"chromium is not in PATH (Debian: apt-get install chromium, or chromium-headless-shell, which is faster)")
	}
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
		// Without these flags, the browser sends requests of its own.
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-quic", true))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // the sandbox does not work for root
	}
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ := chromedp.NewContext(allocator)
	testenv.AfterAll(func() error { end(); return nil })
	return ctx, chromedp.Do(ctx)
})

// Tab is a tab of the browser. It has its own cookies, so it is a user of its own. Its methods fail the test if a step
// is not done within some minutes.
type Tab struct {
	t   testing.TB
	ctx context.Context
	url string // the address that the test opened last

	mu       sync.Mutex
	expected [][]string // parts of the console errors that the test causes: an expected error contains all parts
	errors   []string   // the other console errors
}

// New opens an empty tab, which closes when the test ends. Each console error that the test does not expect fails the
// test then; a violation of the Content-Security-Policy is a console error. If the test fails, it shows the page's
// text.
func New(t testing.TB) *Tab {
	t.Helper()
	browser, err := browser()
	testenv.Must(t, err)
	ctx, closeTab := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	p := &Tab{t: t, ctx: ctx}
	t.Cleanup(func() {
		if t.Failed() {
			p.Screenshot("failed")
			t.Logf("the text of %s at the end:\n%s", p.url, p.shown())
		}
		closeTab()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, e := range p.errors {
			t.Errorf("console of %s: %s", p.url, e)
		}
	})
	testenv.Must(t, chromedp.Listen(ctx, p.listen))
	p.Do(window)
	return p
}

// window gives a tab the size that it has outside of [Tab.CheckLook].
var window = chromedp.EmulateViewport(1280, 900)

// Navigate opens an address.
func (p *Tab) Navigate(url string) {
	p.t.Helper()
	p.url = url
	p.Do(chromedp.Navigate(url))
}

// Reload loads the page again.
func (p *Tab) Reload() {
	p.t.Helper()
	p.Do(chromedp.Reload())
}

func (p *Tab) listen(event any) {
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		details := e.ExceptionDetails
		p.consoleError(fmt.Sprintf("exception %s %s", details.Text, details.Exception.Description))
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

func (p *Tab) consoleError(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, parts := range p.expected {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) }) {
			return
		}
	}
	p.errors = append(p.errors, text)
}

// Expect makes the tab ignore all later console errors that contain all parts.
func (p *Tab) Expect(parts ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = append(p.expected, parts)
}

// Do takes steps in the tab.
func (p *Tab) Do(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	Run(p, chromedp.Steps(steps...))
}

// Run runs an action in a tab and returns its result.
func Run[T any](p *Tab, action chromedp.Action[T]) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		p.t.Fatal(err)
	}
	return v
}

// Eval evaluates an expression of JavaScript in a tab's page and returns its value.
func Eval[T any](p *Tab, expression string) T {
	p.t.Helper()
	return Run(p, chromedp.Evaluate[T](expression))
}

// read is [Eval] for an expression that changes nothing. It evaluates the expression again if the browser loads
// another document meanwhile.
func read[T any](p *Tab, expression string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	for {
		v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
		if err == nil {
			return v
		}
		if !strings.Contains(err.Error(), "navigated") {
			p.t.Fatal(err)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			p.t.Fatal(err)
		}
	}
}

// Text returns the text of the first element that a selector matches, or "" if there is none.
func (p *Tab) Text(selector string) string {
	p.t.Helper()
	return read[string](p, fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ""`, selector))
}

// Count returns the number of elements that a selector matches.
func (p *Tab) Count(selector string) int {
	p.t.Helper()
	return read[int](p, fmt.Sprintf(`document.querySelectorAll(%q).length`, selector))
}

// WaitFor waits until an element's text contains a text.
func (p *Tab) WaitFor(selector, text string) {
	p.t.Helper()
	p.Until(fmt.Sprintf("%q in %s", text, selector), func() bool { return strings.Contains(p.Text(selector), text) })
}

// Until waits until a condition holds, which the first argument describes.
func (p *Tab) Until(condition string, holds func() bool) {
	p.t.Helper()
	testenv.EventuallyWithin(p.t, patience, condition+", on the page", holds)
}

// Click waits until an element is visible and enabled, and clicks it.
func (p *Tab) Click(selector string) {
	p.t.Helper()
	p.Do(chromedp.Click(chromedp.CSS(selector), chromedp.NodeEnabled))
}

// Type types a text into an element.
func (p *Tab) Type(selector, text string) {
	p.t.Helper()
	p.Do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

// Press presses a key, such as [kb.Tab], in the element that has the focus.
//
// [kb.Tab]: https://pkg.go.dev/github.com/chromedp/chromedp/kb#Tab
func (p *Tab) Press(key string) {
	p.t.Helper()
	p.Do(chromedp.KeyEvent(key))
}

// Front shows the tab instead of the tab that is shown now, whose page is hidden then. Many pages learn of no changes
// while they are hidden.
func (p *Tab) Front() {
	p.t.Helper()
	p.Do(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, cdppage.BringToFront, cdp.Empty{})
		return err
	}))
}

// Script runs a script at the start of every document that the tab loads from now on.
func (p *Tab) Script(source string) {
	p.t.Helper()
	p.Do(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, cdppage.AddScriptToEvaluateOnNewDocument,
			cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: source})
		return err
	}))
}

// MarkDocument marks the document, and returns a function that reports whether the mark is still there. A reload
// removes the mark.
func (p *Tab) MarkDocument() (marked func() bool) {
	p.t.Helper()
	Eval[bool](p, `window.mark = true`)
	return func() bool { return Eval[bool](p, `window.mark === true`) }
}

// Attach returns a tab that p has opened. It closes together with p, and its console errors are ignored.
func (p *Tab) Attach(id target.ID) *Tab {
	p.t.Helper()
	ctx, _ := chromedp.NewContext(p.ctx, chromedp.WithTargetID(id))
	testenv.Must(p.t, chromedp.Do(ctx)) // attach for longer than one action
	return &Tab{t: p.t, ctx: ctx}
}

// Screenshot writes a screenshot of the whole page to a file of this name, if -screenshots is set.
func (p *Tab) Screenshot(name string) {
	if *screenshots == "" {
		return
	}
	size := Eval[[2]int64](p, `[window.innerWidth, document.scrollingElement.scrollHeight]`)
	// The whole page fits, so that what sticks to the window's edges covers nothing.
	p.Do(chromedp.EmulateViewport(size[0], size[1]))
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	testenv.Must(p.t, err)
	testenv.Must(p.t, os.WriteFile(filepath.Join(*screenshots, name+".png"), png, 0o644))
}

// shown returns the text of the page, or why there is none.
func (p *Tab) shown() string {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText`))
	if err != nil {
		return err.Error()
	}
	return text
}
