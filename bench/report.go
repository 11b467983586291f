package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"example.com/shop/bench/contender"
	"example.com/shop/bench/contender/ours"
)

// report is the result of a run.
type report struct {
	options
	contenders []contender.Info
	results    *results
}

// table is a table of the report whose cells are medians. Its rows are the contenders.
type table struct {
	title   string
	text    string
	limits  []string // rows beside the contenders
	columns []column
}

// column is a column of a table.
type column struct {
	title  string
	metric metric
	format string
	scale  float64 // by which the values are multiplied; 0 means 1
	better better
}

// better tells whether higher or lower values are better than ours.
type better int

const (
	higher better = iota + 1
	lower
)

// rate returns a column of orders a second.
func rate(title string, m metric) column {
	return column{title: title, metric: m, format: "%.0f", better: higher}
}

// millis returns a column of times, whose values are seconds.
func millis(title string, m metric) column {
	return column{title: title, metric: m, format: "%.1f", scale: 1000, better: lower}
}

// tables returns the tables of medians.
func (r *report) tables() []table {
	return []table{r.speedTable(), r.growthTable(), r.pressureTable()}
}

func (r *report) speedTable() table {
	t := table{
		title: "Speed", limits: []string{oneStatement, pgbenchPlace},
		text: fmt.Sprintf("Burst: %d orders are due at one instant; orders a second from that instant to the last "+
			"commit, for at most %v and the interval of a poll. The p99 is of the time from the deadline to the commit, "+
			"with deadlines that are spread evenly over %v, or over the interval of a poll. Mixed: %d orders are due in %v, "+
			"and %d others, scheduled later, are due sooner, of which the p99 is shown. Moved: %d orders get an "+
			"earlier deadline and %d a later one. Placed: %d clients place orders over HTTP, and each order is "+
			"scheduled.",
			r.Burst, r.Patience+atMost, r.SteadyFor, r.Mixed, 5*r.Unit, r.Mixed, r.Reschedule, r.Reschedule, placeClients),
		columns: []column{rate("burst, orders/s", metric{burst, "rate"})},
	}
	for _, n := range r.Steady {
		t.columns = append(t.columns, millis(fmt.Sprintf("p99 at %d/s, ms", n), metric{steady, fmt.Sprint(n, "/p99")}))
	}
	return t.with(
		millis("mixed: p99, ms", metric{mixed, "p99"}),
		millis("moved: p99, ms", metric{contender.Reschedule, "p99"}),
		rate("placed, orders/s", metric{place, "rate"}),
	)
}

func (t table) with(columns ...column) table {
	t.columns = append(t.columns, columns...)
	return t
}

func (r *report) growthTable() table {
	most := slices.Max(r.Pending)
	t := table{
		title: "With many pending orders", limits: []string{bareZADD},
		text: fmt.Sprintf("A burst of %d orders beside pending ones that are due two hours later, and the rest "+
			"with %s pending orders%s: how many are scheduled in a second, the processor time of all processes "+
			"while none is due (in percent of a core, for %v), and the bytes of an order in each "+
			"store. RabbitMQ with a TTL for each message expires only the head of its queue, and Redisson searches "+
			"its list past all pending orders; neither matters if all delays are equal.",
			r.GrowthDue, short(most), r.fewerPending(most), r.IdleFor),
	}
	for _, n := range r.Pending {
		t.columns = append(t.columns, rate(short(n)+" pending: burst, orders/s", metric{growth, fmt.Sprint(n, "/burst")}))
	}
	return t.with(
		rate("scheduled/s", metric{growth, fmt.Sprint(most, "/schedule")}),
		column{title: "processor, %", metric: metric{idle, "processor"}, format: "%.1f", better: lower},
		column{title: "Redis, bytes", metric: metric{contender.Memory, "redis"}, format: "%.0f", better: lower},
		column{title: "RabbitMQ, bytes", metric: metric{contender.Memory, "rabbit"}, format: "%.0f", better: lower},
		column{title: "own tables, bytes", metric: metric{contender.Memory, "tables"}, format: "%.0f", better: lower},
		column{title: "process, bytes", metric: metric{contender.Memory, "process"}, format: "%.0f", better: lower},
	)
}

// fewerPending returns a remark on the contenders that could not schedule n orders in the time that they had.
func (r *report) fewerPending(n int) string {
	var fewer []string
	for _, c := range r.contenders {
		if pending := r.pending(c, n); pending < float64(n) {
			fewer = append(fewer, fmt.Sprintf("%s: %s", c.Name, short(int(pending))))
		}
	}
	if len(fewer) == 0 {
		return ""
	}
	return fmt.Sprintf(", or those that are scheduled in %v (%s)", r.ScheduleFor, strings.Join(fewer, "; "))
}

// pending returns how many of n pending orders a contender has scheduled.
func (r *report) pending(c contender.Info, n int) float64 {
	if pending := median(r.results.of(c.Name, metric{growth, fmt.Sprint(n, "/pending")})); !math.IsNaN(pending) {
		return pending
	}
	return float64(n)
}

func (r *report) pressureTable() table {
	p := r.Pressure
	figure := func(title, name string, scale float64) column { // not compared with ours, whose rate may be another one
		return column{title: title, metric: metric{pressure, name}, format: "%.0f", scale: scale}
	}
	const milli, mega = 1e3, 1e-6
	return table{
		title: "Pressure",
		text: fmt.Sprintf("Orders are placed in a transaction each %v and %v or more before their deadlines, which pass "+
			"for %v, at half of the highest rate of %s orders/s that the way sustains: it cancels the orders of %v while "+
			"as many are placed, with a p99 at most a second above that of the lowest rate. During the second third a "+
			"snapshot is open, which keeps PostgreSQL from removing dead rows. Each statement then reads thousands of dead "+
			"versions of the rows of %d products, and at high rates some placements fail. The figures of a third are of "+
			"the deadlines of its last %v, however late the orders were cancelled; of those that are left, none was "+
			"cancelled for %v. The index and the own tables have bloat at the end, and jobs that the way keeps.",
			p.Interval, p.Lead, 3*p.Minute, strings.Trim(fmt.Sprint(p.Rates), "[]"), p.TryFor, products, p.Window,
			r.Patience),
		columns: []column{
			rate("half rate, orders/s", metric{pressure, "rate"}),
			figure("before: p99, ms", "before/p99", milli),
			figure("snapshot: cancelled, orders/s", "during/rate", 1),
			figure("snapshot: p99, ms", "during/p99", milli),
			figure("snapshot: left", "during/pending", 1),
			figure("after: p99, ms", "after/p99", milli),
			figure("deadline index, B/order", "index", 1),
			figure("shop's tables, B/order", "shop", 1),
			figure("own tables, B/order", "tables", 1),
			figure("process, MB", "process", mega),
			figure("store, MB", "store", mega),
		},
	}
}

// short returns a number of thousands or millions.
func short(n int) string {
	switch {
	case n >= 1_000_000 && n%1_000_000 == 0:
		return fmt.Sprintf("%d M", n/1_000_000)
	case n >= 1000 && n%1000 == 0:
		return fmt.Sprintf("%d k", n/1000)
	default:
		return fmt.Sprint(n)
	}
}

// write writes the report to out and to its file, and the plots to files.
func (r *report) write(out io.Writer) error {
	var text strings.Builder
	text.WriteString("# Side by side\n\n" + r.warning())
	r.writeSummary(&text)
	r.writeFaults(&text)
	for _, t := range r.tables() {
		r.writeTable(&text, t)
	}
	if err := r.writePlots(&text); err != nil {
		return err
	}
	text.WriteString(studies)
	r.writeContenders(&text)
	r.writeSetups(&text)
	if _, err := io.WriteString(out, text.String()); err != nil {
		return err
	}
	return os.WriteFile(r.file, []byte(text.String()), 0o644)
}

// warning returns a paragraph that comes first in the report of a quick run, and "" for others.
func (r *report) warning() string {
	if !r.isQuick {
		return ""
	}
	return "Quick run: it checks that each contender works. Its figures mean nothing, because its workloads are " +
		"small and several contenders ran at the same time.\n\n"
}

// writeSummary writes the table that says when to pick which way.
func (r *report) writeSummary(text *strings.Builder) {
	lowest := slices.Min(r.Steady)
	var letters []string
	for i, f := range faultCases {
		letters = append(letters, letter(i)+" "+f.name)
	}
	fmt.Fprintf(text, "Which way to time out orders keeps its promise, to cancel each order once and not early, when "+
		"something breaks, and how fast is it? Each way cancels the same orders with the shop's own statement, on the "+
		"same servers.\n\n"+
		"- **Promise**: kept, or the [faults](#faults) that break it: %s.\n"+
		"- **Late**: the latest cancellation in a fault, often that of a handler that hangs.\n"+
		"- **Burst**: orders cancelled a second, if %d are due at one instant.\n"+
		"- **p99**: of the lateness, if %d orders are due each second.\n\n"+
		"Faults a, c and d break each way that schedules an order after its commit and has nothing that repairs the "+
		"store from the table; a sweep would. Bursts are slow where each order is cancelled in a transaction of its "+
		"own. A figure in bold is better than ours by at least %.0f %%; less may be chance. An empty cell was not "+
		"measured or does not apply.\n\n",
		strings.Join(letters, ", "), r.Burst, lowest, 100*clearly)
	text.WriteString("| way | promise | late, s | burst, orders/s | p99, ms | an order costs, B | pick it if |\n" +
		"|---|---|---:|---:|---:|---|---|\n")
	late99 := millis("", metric{steady, fmt.Sprint(lowest, "/p99")})
	late99.format = "%.0f"
	for _, c := range r.byPromise() {
		promise, late := r.promise(c)
		fmt.Fprintf(text, "| %s | %s | %s | %s | %s | %s | %s |\n", c.Name, promise, late,
			r.cell(c.Name, rate("", metric{burst, "rate"})),
			r.cell(c.Name, late99),
			r.cost(c), picks[c.Name])
	}
	text.WriteString("| DBOS's widget store | [broken](#the-widget-store-of-dbos) | | | | | you study DBOS |\n")
}

// byPromise returns the contenders, those first that keep their promise.
func (r *report) byPromise() []contender.Info {
	var keep, others []contender.Info
	for _, c := range r.contenders {
		if promise, _ := r.promise(c); promise == promiseKept {
			keep = append(keep, c)
		} else {
			others = append(others, c)
		}
	}
	return append(keep, others...)
}

// cost returns what an order needs beside the rows of the shop's tables.
func (r *report) cost(c contender.Info) string {
	var costs []string
	for _, store := range []struct{ metric, name string }{
		{"redis", "Redis"}, {"rabbit", "RabbitMQ"}, {"tables", "PostgreSQL"}, {"process", "memory"},
	} {
		bytes := median(r.results.of(c.Name, metric{contender.Memory, store.metric}))
		enough := 1.0 // bytes
		if store.metric == "process" {
			const bare = 100e6 // a process without orders has less
			enough = bare / r.pending(c, slices.Max(r.Pending))
		}
		if bytes > enough {
			costs = append(costs, fmt.Sprintf("%.0f %s", bytes, store.name))
		}
	}
	if len(costs) > 0 {
		return strings.Join(costs, ", ")
	}
	if c.Cannot[contender.Memory] != "" {
		return "nothing"
	}
	return ""
}

// writeTable writes a table in Markdown, or nothing if no row has a value.
func (r *report) writeTable(text *strings.Builder, t table) {
	rows := slices.DeleteFunc(r.rowNames(t.limits...), func(row string) bool { return !r.hasValue(t, row) })
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(text, "\n## %s\n\n%s\n\n| |", t.title, t.text)
	for _, c := range t.columns {
		fmt.Fprintf(text, " %s |", c.title)
	}
	text.WriteString("\n|---|" + strings.Repeat("---:|", len(t.columns)) + "\n")
	for _, row := range rows {
		fmt.Fprintf(text, "| %s |", row)
		for _, c := range t.columns {
			fmt.Fprintf(text, " %s |", r.cell(row, c))
		}
		text.WriteString("\n")
	}
}

// rowNames returns the names of limits, and then those of the contenders.
func (r *report) rowNames(limits ...string) []string {
	names := slices.Clone(limits)
	for _, c := range r.contenders {
		names = append(names, c.Name)
	}
	return names
}

// hasValue reports whether a row has a value in a column of the table.
func (r *report) hasValue(t table, row string) bool {
	return slices.ContainsFunc(t.columns, func(c column) bool { return len(r.results.of(row, c.metric)) > 0 })
}

// cell returns the median of a metric, in bold if it is better than ours, or "" if there is none.
func (r *report) cell(row string, c column) string {
	value := median(r.results.of(row, c.metric))
	if math.IsNaN(value) {
		return ""
	}
	text := fmt.Sprintf(c.format, value*cmp.Or(c.scale, 1))
	if text == "-0" { // memory that shrank a little
		text = "0"
	}
	isContender := slices.Contains(r.rowNames(), row)
	if isContender && c.isBetter(value, median(r.results.of(ours.Name, c.metric))) {
		return "**" + text + "**"
	}
	return text
}

// clearly is by which part a figure must be better than ours. Less may be chance, because ways that schedule nothing
// place orders at rates that differ by as much.
const clearly = 0.25

// isBetter reports whether a value is clearly better than ours. If one of them is NaN, it is not.
func (c column) isBetter(value, ours float64) bool {
	gain := value - ours
	if c.better == lower {
		gain = -gain
	}
	return c.better != 0 && gain > clearly*math.Abs(ours)
}

// writeContenders writes how each contender works, and its settings.
func (r *report) writeContenders(text *strings.Builder) {
	text.WriteString("\n## Contenders\n\nEach name links to the source of the way.\n\n" +
		"| | way | settings |\n|---|---|---|\n")
	var above contender.Info
	unless := func(text, above string) string {
		if text == above {
			return "as above"
		}
		return text
	}
	for _, c := range r.contenders {
		name := c.Name
		if strings.HasPrefix(c.Source, "https:") {
			name = fmt.Sprintf("[%s](%s)", c.Name, c.Source)
		}
		fmt.Fprintf(text, "| %s | %s | %s |\n", name, unless(c.Way, above.Way), unless(c.Settings, above.Settings))
		above = c
	}
}

// writeSetups writes on which machines and with which versions the results were measured. It leaves out the lines that
// a setup shares with an earlier one.
func (r *report) writeSetups(text *strings.Builder) {
	fmt.Fprintf(text, "\n## Measurements\n\nRounds of speed: %d.", r.rounds())
	if r.options.results != "" {
		fmt.Fprintf(text, " The [results](%s) tell the setup of each figure.", filepath.Base(r.options.results))
	}
	text.WriteString("\n")
	seen := map[string]bool{}
	for _, s := range r.results.setups {
		names, first, last := r.results.measured(s.Setup)
		if len(names) == 0 {
			continue
		}
		days := first.Format(time.DateOnly)
		if end := last.Format(time.DateOnly); end != days {
			days += " to " + end
		}
		fmt.Fprintf(text, "\nSetup %s, %s, of %s:\n\n", s.Setup, strings.Join(names, ", "), days)
		for _, line := range s.Lines {
			if !seen[line] {
				fmt.Fprintf(text, "- %s\n", line)
			}
			seen[line] = true
		}
	}
}

// rounds returns the number of rounds of the part speed that have results.
func (r *report) rounds() (n int) {
	for _, c := range r.results.cells(ours.Name) {
		if c.Workload == burst && c.Failed == "" {
			n++
		}
	}
	return n
}

// writePlots writes the plots to files beside the report, and links to them to text. It leaves out a plot without
// values.
func (r *report) writePlots(text *strings.Builder) error {
	low := slices.Min(r.Steady)
	heading := "\n## Plots\n"
	for _, p := range []struct {
		name   string
		metric metric
		draw   func() string
	}{
		{burst, metric{burst, "rate"}, func() string {
			return r.barPlot("orders/s from the due instant to the last commit", metric{burst, "rate"}, oneStatement)
		}},
		{steady, metric{steady, fmt.Sprint(low, "/p99")}, func() string {
			return r.rangePlot(fmt.Sprintf("milliseconds late at %d orders/s: p50, p99 and max", low), fmt.Sprint(low, "/"))
		}},
		{growth, metric{growth, fmt.Sprint(slices.Min(r.Pending), "/burst")}, func() string {
			return r.linePlot(fmt.Sprintf("orders/s of a burst of %d beside pending orders", r.GrowthDue))
		}},
	} {
		if len(r.rows(p.metric)) == 0 {
			continue
		}
		name := strings.TrimSuffix(filepath.Base(r.file), ".md") + "-" + p.name + ".svg"
		fmt.Fprintf(text, "%s\n![%s](%s)\n", heading, p.name, name)
		heading = ""
		if err := os.WriteFile(filepath.Join(filepath.Dir(r.file), name), []byte(p.draw()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
