package main

import (
	"fmt"
	"slices"
	"strings"

	"example.com/shop/bench/contender"
)

// outcome is what a fault did to the orders of a contender: how many are still pending, were cancelled before their
// deadlines, and violate an invariant, and the seconds from a deadline to the latest cancellation.
type outcome struct{ lost, early, wrong, latest float64 }

// kept reports whether the promise was kept: all orders were cancelled, not early, and each of them once.
func (o outcome) kept() bool { return o.lost == 0 && o.early == 0 && o.wrong == 0 }

// outcomes returns the outcomes of a fault, one of each run: the worst of all tries.
func (r *report) outcomes(name string, f faultCase) (all []outcome) {
	for _, c := range r.results.cells(name) {
		v := c.Values[f.name]
		if c.Workload == f.name && len(v["lost"]) > 0 {
			all = append(all, outcome{
				lost: slices.Max(v["lost"]), early: slices.Max(v["early"]), wrong: slices.Max(v["wrong"]),
				latest: slices.Max(v["latest"]),
			})
		}
	}
	return all
}

// worst returns the greatest values of outcomes.
func worst(all []outcome) (w outcome) {
	for _, o := range all {
		w = outcome{max(w.lost, o.lost), max(w.early, o.early), max(w.wrong, o.wrong), max(w.latest, o.latest)}
	}
	return w
}

// letter returns the letter of a fault.
func letter(fault int) string { return string(rune('a' + fault)) }

// promise returns whether a contender keeps its promise, or the letters of the faults in which it does not, and the
// latest cancellation under the faults, in seconds. Both are "" as long as no fault breaks the promise and one is not
// measured.
func (r *report) promise(c contender.Info) (promise, late string) {
	latest, complete := 0.0, true
	var broken []string
	for i, f := range faultCases {
		all := r.outcomes(c.Name, f)
		o := worst(all)
		complete = complete && (len(all) > 0 || !f.concerns(c))
		latest = max(latest, o.latest)
		if !o.kept() {
			broken = append(broken, letter(i))
		}
	}
	switch {
	case len(broken) > 0:
		promise = "broken: " + strings.Join(broken, " ")
	case complete:
		promise = "kept"
	default:
		return "", ""
	}
	return promise, fmt.Sprintf("%.1f", latest)
}

// writeFaults writes the table of the faults.
func (r *report) writeFaults(text *strings.Builder) {
	f := r.Faults
	fmt.Fprintf(text, "\n## Faults\n\n%d orders, whose deadlines are spread over %v, and one of these faults, up "+
		"to %d times until an order is lost. What was killed starts again after %v.\n\n", f.Orders, f.Spread, f.Tries, f.Restart)
	for i, c := range faultCases {
		fmt.Fprintf(text, "- **%s, %s**: %s\n", letter(i), c.name, c.about)
	}
	fmt.Fprintf(text, "\nA cell has the seconds from the deadline to the latest cancellation if the promise is "+
		"kept. Lost orders are still pending %v after the last deadline, which is longer than any recovery takes, "+
		"but for River's as shipped, of an hour; a person has to find them. No order was cancelled early or "+
		"twice unless the cell says so, because the shop's statement refuses it; a statement without this check "+
		"depends on the way. A call that fails is repeated as the client library does by default. n/a: a way that "+
		"keeps nothing beside PostgreSQL has no such store.\n\n| |", f.Lost)
	for i := range faultCases {
		fmt.Fprintf(text, " %s |", letter(i))
	}
	text.WriteString("\n| --- |" + strings.Repeat(" ---: |", len(faultCases)) + "\n")
	var differ []string
	for _, c := range r.contenders {
		fmt.Fprintf(text, "| %s |", c.Name)
		for i, f := range faultCases {
			all := r.outcomes(c.Name, f)
			fmt.Fprintf(text, " %s |", r.faultCell(c, f, all))
			if slices.ContainsFunc(all, func(o outcome) bool { return o.kept() != all[0].kept() }) {
				differ = append(differ, fmt.Sprintf("%s in %s", c.Name, letter(i)))
			}
		}
		text.WriteString("\n")
	}
	verdict := "agree in each cell on whether the promise is kept"
	if len(differ) > 0 {
		verdict = "differ in whether the promise is kept in: " + strings.Join(differ, "; ")
	}
	fmt.Fprintf(text, "\nThe %d runs %s. A range shows the least and the most lost orders.\n", r.FaultRuns, verdict)
}

// faultCell returns the text of a cell: the latest cancellation of all runs, or what went wrong.
func (r *report) faultCell(c contender.Info, f faultCase, all []outcome) string {
	if len(all) == 0 {
		if !f.concerns(c) {
			return "n/a"
		}
		return r.results.whyMissing(c.Name, f.name)
	}
	var wrong []string
	add := func(what string, value func(outcome) float64) {
		least, most := value(all[0]), value(all[0])
		for _, o := range all {
			least, most = min(least, value(o)), max(most, value(o))
		}
		switch {
		case most == 0:
		case least == most:
			wrong = append(wrong, fmt.Sprintf("%.0f %s", most, what))
		default:
			wrong = append(wrong, fmt.Sprintf("%.0f–%.0f %s", least, most, what))
		}
	}
	add("lost", func(o outcome) float64 { return o.lost })
	add("early", func(o outcome) float64 { return o.early })
	add("wrong", func(o outcome) float64 { return o.wrong })
	if len(wrong) > 0 {
		return "**" + strings.Join(wrong, ", ") + "**"
	}
	return fmt.Sprintf("%.1f", worst(all).latest)
}
