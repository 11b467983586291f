package e2e

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/browsertest"
)

// frame is what the picture of time showed until the page drew it anew.
type frame struct {
	SVG     string
	Caption string
	Seconds float64 // for which it was shown
}

// TestPageFilm films the picture of time of the operators' page while orders are placed and time out, while Redis is
// wiped, and while the worker is paused. With -screenshots it writes the film, which is the picture of the README, as
// an SVG with an animation.
func TestPageFilm(t *testing.T) {
	shoptest.PageTest(t)
	p := demo(t, nil, timeoutFlag, "16s")
	ops := faultsTab(t, p)
	ops.Do(chromedp.EmulateViewport(900, 900))
	browsertest.Eval[bool](ops, `(() => {
		window.film = [];
		window.caption = '';
		const picture = document.querySelector('#schedule');
		new MutationObserver(() => film.push({ at: performance.now(), svg: picture.innerHTML, caption })).observe(picture, { childList: true });
		return true;
	})()`)
	second := 0
	scene := func(caption string, seconds int, do func()) {
		browsertest.Eval[string](ops, fmt.Sprintf("window.caption = %q", caption))
		do()
		for range seconds {
			next := time.After(time.Second)
			for range 12 + 8*(second%4) {
				p.SignUp().Create()
			}
			second++
			<-next
		}
	}
	press := func(fault string) func() { return func() { ops.Click(`[data-fault="` + fault + `"]`) } }
	scene("Customers place orders. Each has 16 s to pay.", 8, func() {})
	scene("Redis is wiped. The reconciler finds what is missing, and adds it.", 5, func() {
		ops.Until("the picture shows missing tasks", func() bool { // a sweep may be faster than the page
			press("redis-wipe")()
			return browsertest.Eval[bool](ops, `film.some(({ svg }) => svg.includes('class="missing"'))`)
		})
	})
	scene("Orders that nobody pays reach their deadlines, and a worker cancels them.", 6, func() {})
	scene("The worker is stopped. After 2 s the reconciler cancels what is overdue.", 7, press("worker-pause"))
	scene("The worker runs again.", 4, press("worker-resume"))
	frames := browsertest.Eval[[]frame](ops,
		`film.slice(0, -1).map(({ at, svg, caption }, i) => ({ svg, caption, seconds: (film[i + 1].at - at) / 1000 }))`)

	missing := slices.IndexFunc(frames, func(f frame) bool { return strings.Contains(f.SVG, `class="missing"`) })
	style, err := os.ReadFile("../web/assets/style.css")
	testenv.Must(t, err)
	film := animate(frames, missing, string(style))
	if len(film) > maxFilm {
		t.Errorf("the film has %d bytes, want at most %d", len(film), maxFilm)
	}
	ops.WriteFile("schedule.svg", []byte(film))
}

const (
	maxFilm    = 500_000 // bytes
	filmWindow = 90      // seconds that the picture of the demo shows: one and a half look-aheads of a minute
)

// What animate takes of a frame and of the style sheet, and what it leaves out.
var (
	viewBox = regexp.MustCompile(`viewBox="0 0 (\d+) (\d+)"`)
	shapes  = regexp.MustCompile(`(?s)^<svg[^>]*>(<defs>.*?</defs>)(.*)</svg>$`)
	leftOut = regexp.MustCompile(`<circle[^>]*></circle>| xmlns="[^"]*"`)
	colours = regexp.MustCompile(`(?s):root \{.*?\n\}|@media \(prefers-color-scheme: dark\) \{\n.*?\n\}`)
	rules   = regexp.MustCompile(`(?m)^\.(?:chart|schedule) ((?:text|\.grid|\.title|\.past|\.now|\.orders|\.tasks|\.missing) \{.*\})$`)
)

// animate returns an SVG that shows the frames one after the other, again and again. It shows only the frame still to a
// viewer who prefers no motion.
func animate(frames []frame, still int, style string) string {
	var total float64
	for _, f := range frames {
		total += f.Seconds
	}
	var width, height int
	fmt.Sscan(strings.Join(viewBox.FindStringSubmatch(frames[0].SVG)[1:], " "), &width, &height)
	var css, content strings.Builder
	css.WriteString(strings.Join(colours.FindAllString(style, -1), "\n"))
	for _, rule := range rules.FindAllStringSubmatch(style, -1) {
		css.WriteString("\n" + rule[1])
	}
	fmt.Fprintf(&css,
		"\ntext { font-family: system-ui, sans-serif; } .f { visibility: hidden; } #f%d { visibility: visible; }\n"+
			"@media (prefers-reduced-motion: no-preference) {\n", still)
	var at float64
	for i, f := range frames {
		parts := shapes.FindStringSubmatch(leftOut.ReplaceAllString(f.SVG, ""))
		if i == 0 {
			content.WriteString(parts[1])
		}
		fmt.Fprintf(&content, "\n<g class=\"f\" id=\"f%d\">%s<text class=\"title\" x=\"0\" y=\"%d\">%s</text></g>",
			i, parts[2], height+22, f.Caption)
		begin, end := 100*at/total, 100*(at+f.Seconds)/total
		fmt.Fprintf(&css,
			"#f%[1]d { animation: f%[1]d %.2[2]fs step-end infinite; } #f%[1]d .moving { animation: m%[1]d %.2[2]fs "+
				"linear infinite; }\n"+
				"@keyframes f%[1]d { 0%% { visibility: hidden; } %.3[3]f%% { visibility: visible; } %.3[4]f%% { "+
				"visibility: hidden; } }\n"+
				"@keyframes m%[1]d { 0%%, %.3[3]f%% { transform: none; } %.3[4]f%%, 100%% { transform: "+
				"translateX(%.1[5]fpx); } }\n",
			i, total, begin, end, -f.Seconds*float64(width)/filmWindow)
		at += f.Seconds
	}
	css.WriteString("}\n")
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-16 -12 %d %d\">\n<style>\n%s</style>\n"+
		"<rect x=\"-16\" y=\"-12\" width=\"%[1]d\" height=\"%[2]d\" rx=\"10\" fill=\"var(--card)\"/>%[4]s\n</svg>\n",
		width+32, height+50, css.String(), content.String())
}
