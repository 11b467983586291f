package browsertest

import (
	"context"
	_ "embed"
	"encoding/json"
	"slices"
	"strings"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// poorContrast is a script that returns the texts with too little contrast.
//
//go:embed contrast.js
var poorContrast string

// CheckLook checks the page as it is, wide and narrow, light and dark: every control has a name ([Tab.CheckNames]),
// every text has enough contrast, and the page is no wider than the screen. The name is that of the screenshots.
func (p *Tab) CheckLook(name string) {
	p.t.Helper()
	p.CheckNames()
	for _, view := range []struct {
		name          string
		width, height int64
		scheme        string
	}{
		{name, 1120, 900, "light"},
		{name + "-dark", 1120, 900, "dark"},
		{name + "-phone", 320, 844, "light"},
		{name + "-phone-dark", 320, 844, "dark"},
	} {
		p.Do(chromedp.EmulateViewport(view.width, view.height), prefer(view.scheme))
		for _, text := range Eval[[]string](p, poorContrast) {
			p.t.Errorf("%s: too little contrast: %s", view.name, text)
		}
		if wide := Eval[int64](p, `document.scrollingElement.scrollWidth`); wide > view.width {
			p.t.Errorf("%s: the page is %d pixels wide on a screen of %d", view.name, wide, view.width)
		}
		p.Screenshot(view.name)
	}
	p.Do(window, prefer("light"))
}

// controls are the roles of elements that a user can operate.
var controls = []string{"button", "link", "textbox", "spinbutton", "DisclosureTriangle", "checkbox", "combobox"}

// landmarks are the roles of the parts of a page between which a user of a screen reader jumps.
var landmarks = []string{"banner", "navigation", "main", "contentinfo"}

// CheckNames checks the page's accessibility tree. It must have each landmark once (header, nav, main and footer), one
// heading of level one, at least one button, and names for all controls, images and headings.
func (p *Tab) CheckNames() {
	p.t.Helper()
	roles := map[string]int{}
	for _, node := range Run(p, accessibilityTree) {
		if node.Ignored {
			continue
		}
		role, name := textOf(node.Role), textOf(node.Name)
		roles[role]++
		if (slices.Contains(controls, role) || role == "image" || role == "heading") && strings.TrimSpace(name) == "" {
			p.t.Errorf("a %s without a name", role)
		}
	}
	for _, role := range landmarks {
		if roles[role] != 1 {
			p.t.Errorf("%d elements of the role %s, want 1", roles[role], role)
		}
	}
	if n := p.Count("h1"); n != 1 {
		p.t.Errorf("%d headings of level one, want 1", n)
	}
	if roles["button"] == 0 {
		p.t.Errorf("no button; the page has the roles %v", roles)
	}
}

// accessibilityTree returns the nodes that a screen reader reads.
func accessibilityTree(ctx context.Context, target *chromedp.Target) ([]*accessibility.Node, error) {
	tree, err := cdp.Call(ctx, target, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	return tree.Nodes, err
}

// textOf returns the text of a value in the accessibility tree.
func textOf(v *accessibility.Value) (text string) {
	if v != nil {
		_ = json.Unmarshal(v.Value, &text)
	}
	return text
}

// prefer sets the colour scheme that the user prefers, light or dark.
func prefer(scheme string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	})
}
