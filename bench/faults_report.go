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

// tries returns how often the fault of a cell was tried.
func (c cell) tries() int { return len(c.Values[c.Workload]["lost"]) }

// outcome returns the outcome of the fault of a cell that has tries: the worst of them.
func (c cell) outcome() outcome {
	v := c.Values[c.Workload]
	return outcome{
		lost: slices.Max(v["lost"]), early: slices.Max(v["early"]), wrong: slices.Max(v["wrong"]),
		latest: slices.Max(v["latest"]),
	}
}

// faultCells returns the cells of a fault, one of each run.
func (r *results) faultCells(contender, fault string) []cell {
	return slices.DeleteFunc(r.cells(contender), func(c cell) bool { return c.Workload != fault || c.tries() == 0 })
}

// wavering returns those cells in which the promise is kept, if it is broken in another one, and which have less than
// most tries.
func wavering(cells []cell, most int) []cell {
	if !differ(outcomes(cells)) {
		return nil
	}
	return slices.DeleteFunc(cells, func(c cell) bool { return !c.outcome().kept() || c.tries() >= most })
}

// differ reports whether the promise is kept in one of the outcomes, and broken in another.
func differ(all []outcome) bool {
	return slices.ContainsFunc(all, func(o outcome) bool { return o.kept() != all[0].kept() })
}

// outcomes returns the outcomes of cells of a fault.
func outcomes(cells []cell) (all []outcome) {
	for _, c := range cells {
		all = append(all, c.outcome())
	}
	return all
}

// outcomes returns the outcomes of a fault, one of each run.
func (r *report) outcomes(contender string, f faultCase) []outcome {
	return outcomes(r.results.faultCells(contender, f.name))
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

// promiseKept is what the report says of a contender that keeps its promise in all faults.
const promiseKept = "kept"

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
		promise = promiseKept
	default:
		return "", ""
	}
	return promise, fmt.Sprintf("%.1f", latest)
}

// writeFaults writes the table of the faults.
func (r *report) writeFaults(text *strings.Builder) {
	f := r.Faults
	fmt.Fprintf(text, "\n## Faults\n\n%d orders, whose deadlines are spread over %v, and one of these faults, up "+
		"to %d times (a and 60 s polls: once) until an order is lost, or %d if the runs disagree. What was killed "+
		"starts again after %v, a store that is away after %v. Up to %d ways share the machine.\n\n",
		f.Orders, f.Spread, f.Tries, f.Most, f.Restart, f.Away, r.FaultLanes)
	for i, c := range faultCases {
		fmt.Fprintf(text, "- **%s, %s**: %s\n", letter(i), c.name, c.about)
	}
	fmt.Fprintf(text, "\nA cell has the seconds from the deadline to the latest cancellation if the promise is "+
		"kept, otherwise in bold the number of lost orders. Orders are lost if none was cancelled for %v: longer than "+
		"each recovery but that of River as shipped, which begins after an hour. No order was cancelled early or twice "+
		"unless the cell says so: the shop's statement refuses it. A call that fails is repeated as the client library "+
		"does by default. n/a: a way that keeps nothing beside PostgreSQL has no such store.\n\n| |", f.Lost)
	for i := range faultCases {
		fmt.Fprintf(text, " %s |", letter(i))
	}
	text.WriteString("\n|---|" + strings.Repeat("---:|", len(faultCases)) + "\n")
	var differing []string
	for _, c := range r.contenders {
		fmt.Fprintf(text, "| %s |", c.Name)
		for i, f := range faultCases {
			all := r.outcomes(c.Name, f)
			fmt.Fprintf(text, " %s |", r.faultCell(c, f, all))
			if differ(all) {
				differing = append(differing, fmt.Sprintf("%s in %s", c.Name, letter(i)))
			}
		}
		text.WriteString("\n")
	}
	verdict := "agree in each cell on whether the promise is kept"
	if len(differing) > 0 {
		verdict = "differ in whether the promise is kept in: " + strings.Join(differing, "; ")
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
			wrong = append(wrong, fmt.Sprintf("%.0f%s", most, what))
		default:
			wrong = append(wrong, fmt.Sprintf("%.0f–%.0f%s", least, most, what))
		}
	}
	add("", func(o outcome) float64 { return o.lost })
	add(" early", func(o outcome) float64 { return o.early })
	add(" wrong", func(o outcome) float64 { return o.wrong })
	if len(wrong) > 0 {
		return "**" + strings.Join(wrong, ", ") + "**"
	}
	return fmt.Sprintf("%.1f", worst(all).latest)
}
