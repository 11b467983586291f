package main

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"

	"example.com/shop/bench/contender"
	"example.com/shop/bench/contender/ours"
)

// The plots are SVG with a logarithmic axis, because the contenders differ by orders of magnitude. Their colors can be
// read on a light and on a dark page.

const (
	plotWidth  = 900
	nameWidth  = 230 // for the names of the contenders
	rowHeight  = 20
	plotMargin = 45 // above and below the rows

	oursColor  = "#d9480f"
	otherColor = "#4c7ab8"
	limitColor = "#868e96"
	textColor  = "#868e96"
)

// axis maps values to positions, by their logarithms.
type axis struct{ low, high, from, to float64 }

// newAxis returns an axis for the values, from a power of ten to a power of ten. It ignores values without a logarithm.
func newAxis(values []float64, from, to float64) axis {
	positive := slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return math.IsNaN(v) || v <= 0 })
	if len(positive) == 0 {
		positive = []float64{1}
	}
	low := math.Floor(math.Log10(slices.Min(positive)))
	return axis{low, max(math.Ceil(math.Log10(slices.Max(positive))), low+1), from, to}
}

// at returns the position of a value, or the beginning of the axis if the value has no logarithm.
func (a axis) at(value float64) float64 {
	if math.IsNaN(value) || value <= 0 {
		return a.from
	}
	return a.from + (a.to-a.from)*(math.Log10(value)-a.low)/(a.high-a.low)
}

// ticks returns the powers of ten.
func (a axis) ticks() (values []float64) {
	for e := a.low; e <= a.high; e++ {
		values = append(values, math.Pow(10, e))
	}
	return values
}

// drawing collects the elements of an SVG.
type drawing struct{ strings.Builder }

func (d *drawing) add(format string, args ...any) {
	_, _ = fmt.Fprintf(d, format+"\n", args...) // writing to a strings.Builder does not fail
}

func (d *drawing) text(x, y float64, anchor, color, text string) {
	d.add(`<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">%s</text>`, x, y, anchor, color, html.EscapeString(text))
}

// svg returns the whole picture.
func (d *drawing) svg(height float64, title string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" font-family="sans-serif" font-size="12" role="img">
<title>%s</title>
<text x="%d" y="18" fill="%s" font-size="14">%s</text>
%s</svg>
`, plotWidth, height, html.EscapeString(title), nameWidth, textColor, html.EscapeString(title), d.String())
}

// verticals draws the ticks of a horizontal axis.
func (d *drawing) verticals(a axis, bottom float64) {
	for _, value := range a.ticks() {
		x := a.at(value)
		d.add(`<line x1="%.1f" y1="%d" x2="%.1f" y2="%.1f" stroke="%s" stroke-opacity="0.3"/>`,
			x, plotMargin-10, x, bottom, limitColor)
		d.text(x, bottom+16, "middle", textColor, label(value))
	}
}

// label returns a number without trailing zeros, or with k or M.
func label(value float64) string {
	switch {
	case value >= 1e6:
		return fmt.Sprintf("%gM", value/1e6)
	case value >= 1e3:
		return fmt.Sprintf("%gk", value/1e3)
	default:
		return fmt.Sprintf("%g", value)
	}
}

func colorOf(name string) string {
	switch {
	case name == ours.Name:
		return oursColor
	case strings.HasPrefix(name, "limit"):
		return limitColor
	default:
		return otherColor
	}
}

// rows returns the names with values of a metric: the limits first, and then the contenders.
func (r *report) rows(m metric, limits ...string) []string {
	return slices.DeleteFunc(r.rowNames(limits...), func(name string) bool { return len(r.results.of(name, m)) == 0 })
}

// barPlot draws the median of a metric as a bar for each row, and the least and the greatest value as a line.
func (r *report) barPlot(title string, m metric, limits ...string) string {
	names := r.rows(m, limits...)
	var values []float64
	for _, name := range names {
		values = append(values, r.results.of(name, m)...)
	}
	a := newAxis(values, nameWidth, plotWidth-60)
	bottom := float64(plotMargin + rowHeight*len(names))
	var d drawing
	d.verticals(a, bottom)
	for i, name := range names {
		y := float64(plotMargin + rowHeight*i)
		values := r.results.of(name, m)
		middle := median(values)
		d.text(nameWidth-8, y+13, "end", textColor, name)
		d.add(`<rect x="%d" y="%.1f" width="%.1f" height="%d" fill="%s"/>`,
			nameWidth, y+3, max(a.at(middle)-nameWidth, 1), rowHeight-6, colorOf(name))
		d.add(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#212529"/>`,
			a.at(slices.Min(values)), y+rowHeight/2, a.at(slices.Max(values)), y+rowHeight/2)
		d.text(a.at(slices.Max(values))+6, y+14, "start", textColor, fmt.Sprintf("%.0f", middle))
	}
	return d.svg(bottom+plotMargin-15, title)
}

// rangePlot draws a line from the p50 to the greatest lateness of each contender, with a mark at the p99.
func (r *report) rangePlot(title, prefix string) string {
	names := r.rows(metric{steady, prefix + "p99"})
	of := func(name, figure string) float64 {
		return 1000 * median(r.results.of(name, metric{steady, prefix + figure}))
	}
	var values []float64
	for _, name := range names {
		values = append(values, of(name, "p50"), of(name, "max"))
	}
	a := newAxis(values, nameWidth, plotWidth-60)
	bottom := float64(plotMargin + rowHeight*len(names))
	var d drawing
	d.verticals(a, bottom)
	for i, name := range names {
		y := float64(plotMargin + rowHeight*i + rowHeight/2)
		d.text(nameWidth-8, y+4, "end", textColor, name)
		d.add(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="6" stroke-opacity="0.5"/>`,
			a.at(of(name, "p50")), y, a.at(of(name, "max")), y, colorOf(name))
		d.add(`<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/>`, a.at(of(name, "p99")), y, colorOf(name))
	}
	return d.svg(bottom+plotMargin-15, title)
}

// linePlot draws the rate of a burst over the number of pending orders, a line for each contender.
func (r *report) linePlot(title string) string {
	const top, height = float64(plotMargin), 460.0
	var rates, pending []float64
	for _, n := range r.Pending {
		pending = append(pending, float64(n))
		for _, c := range r.contenders {
			rates = append(rates, r.results.of(c.Name, metric{growth, fmt.Sprint(n, "/burst")})...)
		}
	}
	x := newAxis(pending, 60, plotWidth-nameWidth)
	y := newAxis(rates, top+height, top)
	var d drawing
	d.verticals(x, top+height)
	for _, value := range y.ticks() {
		d.add(`<line x1="60" y1="%.1f" x2="%d" y2="%.1f" stroke="%s" stroke-opacity="0.3"/>`,
			y.at(value), plotWidth-nameWidth, y.at(value), limitColor)
		d.text(52, y.at(value)+4, "end", textColor, label(value))
	}
	type end struct {
		name string
		y    float64
	}
	var ends []end
	for _, c := range r.contenders {
		if points, last := r.growthPoints(c, x, y); points != "" {
			d.add(`<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`, points, colorOf(c.Name))
			ends = append(ends, end{c.Name, last})
		}
	}
	// Each name stands at the end of its line, or below the name above it.
	slices.SortFunc(ends, func(a, b end) int { return cmp.Compare(a.y, b.y) })
	free := top
	for _, e := range ends {
		at := max(e.y+4, free)
		d.text(plotWidth-nameWidth+8, at, "start", colorOf(e.name), e.name)
		free = at + 15
	}
	return d.svg(max(top+height, free)+plotMargin-15, title)
}

// growthPoints returns the points of a contender's line, and the height of the last one.
func (r *report) growthPoints(c contender.Info, x, y axis) (points string, last float64) {
	for _, n := range r.Pending {
		values := r.results.of(c.Name, metric{growth, fmt.Sprint(n, "/burst")})
		if len(values) > 0 {
			last = y.at(median(values))
			points += fmt.Sprintf("%.1f,%.1f ", x.at(r.pending(c, n)), last)
		}
	}
	return strings.TrimSpace(points), last
}
