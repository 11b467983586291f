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

	"example.com/shop/bench/contender"
	"example.com/shop/bench/contender/ours"
)

// report is the result of a run.
type report struct {
	options
	contenders []contender.Info
	results    *results
	setup      []string // lines about the machine and the servers
}

func newReport(o options, contenders []contender.Info) *report {
	return &report{options: o, contenders: contenders, results: newResults()}
}

// table is a table of the report. Its rows are the contenders.
type table struct {
	workload string
	title    string
	text     string
	limits   []string // rows beside the contenders
	columns  []column
}

// column is a column of a table.
type column struct {
	title  string
	metric metric
	format string
	scale  float64 // by which the values are multiplied
	ratio  string  // the contender or the limit by whose median this column divides; "": the value itself
	better better
	unless metric // a contender whose value of this metric is above 0 is not compared with ours
}

// better tells whether higher or lower values are better, for the list of the contenders that are better than ours.
type better int

const (
	higher better = iota + 1
	lower
)

// minP999 is the number of orders from which the 99.9th percentile of their lateness is shown.
const minP999 = 5000

// fixedLevels belongs to the texts of the workloads in which the delays depend on the speed of the contender.
const fixedLevels = "\"Fixed delay levels\" and \"RabbitMQ, per-queue TTL\" round each delay up to a level. A shop with one delay " +
	"can choose an exact level, and has neither the lateness nor the lower rate that the rounding causes."

// tables returns the tables of a run.
func (r *report) tables() []table {
	return []table{
		r.burstTable(), r.steadyTable(), r.mixedTable(), r.rescheduleTable(), r.placeTable(), r.crashTable(), r.lostTable(),
		r.growthTable(), r.idleTable(), r.memoryTable(),
	}
}

func (r *report) burstTable() table {
	return table{
		workload: burst, title: "Burst", limits: []string{oneStatement},
		text: fmt.Sprintf("%d orders are due at one instant. The rate is the number of cancelled orders divided by the time from "+
			"that instant to the last commit. The rate while working begins at the first commit, and counts its orders, so it "+
			"favors large batches. The limit is one statement in one session; several sessions together can exceed it. A round "+
			"repeats the burst until the bursts of a contender took %v, at most %d times. ", r.Burst, r.BurstFor, mostBursts) +
			fixedLevels,
		columns: []column{
			{title: "orders/s", metric: metric{burst, "rate"}, format: "%.0f", better: higher},
			{title: "/ ours", metric: metric{burst, "rate"}, format: "%.2f", ratio: ours.Name},
			{title: "/ one statement", metric: metric{burst, "rate"}, format: "%.2f", ratio: oneStatement},
			{title: "while working", metric: metric{burst, "working"}, format: "%.0f", better: higher},
			{title: "delivered again", metric: metric{burst, "doubled"}, format: "%.0f", better: lower},
			{title: "not cancelled", metric: metric{burst, "pending"}, format: "%.0f", better: lower},
		},
	}
}

func (r *report) steadyTable() table {
	t := table{
		workload: steady, title: "Steady",
		text: fmt.Sprintf("Deadlines are spread evenly over %v, or over the time between two looks at the table if that is "+
			"longer. The lateness is the time from the deadline to the commit, in milliseconds. All orders are scheduled before "+
			"the first deadline, and the benchmark does not query the database before the last one; its own timers were late by "+
			"the time in the column lag (p99). A contender keeps up with a rate if, in one run of this length, it cancels all "+
			"orders, and its p99 is less than %v above its own p99 at the lowest rate. The highest rate tried is %d/s. A "+
			"contender that looks for due orders only every few seconds can pass at a rate that it cannot sustain; the burst "+
			"shows that rate. ",
			r.SteadyFor, r.SteadyFor/10, slices.Max(slices.Concat(r.Steady, r.Breaking))) + fixedLevels,
	}
	for _, rate := range r.Steady {
		prefix := fmt.Sprint(rate, "/")
		columns := latenessColumns(steady, prefix, int(float64(rate)*r.SteadyFor.Seconds()))
		columns = slices.Insert(columns, 2,
			column{title: "p99 / ours", metric: metric{steady, prefix + "p99"}, format: "%.1f", ratio: ours.Name})
		columns = append(columns, column{title: "lag", metric: metric{steady, prefix + "lag"}, format: "%.1f", scale: 1000})
		for i := range columns {
			columns[i].title = fmt.Sprintf("%d/s: %s", rate, columns[i].title)
		}
		t.columns = append(t.columns, columns...)
	}
	t.columns = append(t.columns, column{title: "keeps up with", metric: metric{steady, "kept"}, format: "%.0f/s", better: higher})
	return t
}

func (r *report) mixedTable() table {
	return table{
		workload: mixed, title: "Mixed delays",
		text: fmt.Sprintf("%d orders with a delay of %v are scheduled before %d orders with delays from %v to %v. "+
			"The figures are the lateness of the second group, in milliseconds. RabbitMQ with a TTL for each message expires only "+
			"the head of its queue, so the second group waits for the first.", r.Mixed, 5*r.Unit, r.Mixed, r.Unit, 3*r.Unit),
		columns: latenessColumns(mixed, "", r.Mixed),
	}
}

func (r *report) rescheduleTable() table {
	return table{
		workload: contender.Reschedule, title: "Reschedule",
		text: fmt.Sprintf("%d orders get a deadline %v earlier, and %d others one %v later. The figures are the lateness after "+
			"the new deadline, in milliseconds.", r.Reschedule, 2*r.Unit, r.Reschedule, 2*r.Unit),
		columns: latenessColumns(contender.Reschedule, "", 2*r.Reschedule),
	}
}

func (r *report) placeTable() table {
	return table{
		workload: place, title: "Place over HTTP", limits: []string{pgbenchPlace},
		text: fmt.Sprintf("%d clients place orders of one item for %v. The contender's process serves them with the shop's own "+
			"handlers, and schedules each order. Each order has an outbox row, and only ours deletes it. Each client sends its "+
			"next request after the response to the one before, so the latency follows from the rate. pgbench has %d clients and "+
			"a transaction for each order. The shop places waiting orders in one transaction, so it can exceed pgbench.",
			placeClients, r.PlaceFor, pgbenchClients),
		columns: []column{
			{title: "orders/s", metric: metric{place, "rate"}, format: "%.0f", better: higher},
			{title: "/ ours", metric: metric{place, "rate"}, format: "%.2f", ratio: ours.Name},
			{title: "/ pgbench", metric: metric{place, "rate"}, format: "%.2f", ratio: pgbenchPlace},
		},
	}
}

func (r *report) crashTable() table {
	return table{
		workload: crash, title: "Crash",
		text: fmt.Sprintf("The process is killed (SIGKILL) when a fifth of %d due orders is cancelled, and starts again at once. "+
			"An order counts as not cancelled if it is still pending when nothing was cancelled for %v, or for the time after "+
			"which the contender's documentation promises to repeat it, at most %v. River as shipped repeats an order after an "+
			"hour, so its orders are late, not lost. The column latest has the greatest lateness of the cancelled orders.",
			r.Burst, r.PatienceAfterFault, r.MaxRecovery),
		columns: lossColumns(crash),
	}
}

func (r *report) lostTable() table {
	return table{
		workload: contender.StoreLost, title: "Store lost",
		text: fmt.Sprintf("Redis or RabbitMQ loses its data while %d orders are scheduled. RabbitMQ also restarts. A contender that "+
			"keeps nothing outside of the table has nothing to lose. Of the others, only ours compares its store with the table; "+
			"a shop that uses another one can add such a sweep.", r.Lost),
		columns: lossColumns(contender.StoreLost),
	}
}

func (r *report) growthTable() table {
	t := table{
		workload: growth, title: "Growth", limits: []string{bareZADD},
		text: fmt.Sprintf("Orders are cancelled while others are pending and not due. The columns are the rate of a burst of %d "+
			"orders, and how many orders per second are scheduled. The contenders take turns in the order of the table. The "+
			"orders of the burst are scheduled after the pending ones, and are due two hours before them; in a shop with one "+
			"delay, orders are due in the order in which they were placed. RabbitMQ with a TTL for "+
			"each message and Redisson suffer from this order: RabbitMQ expires only the head of its queue, and Redisson "+
			"searches its list past all pending orders.", r.GrowthDue),
	}
	for _, n := range r.Pending {
		t.columns = append(t.columns, column{
			title: fmt.Sprintf("%s pending: burst", short(n)), metric: metric{growth, fmt.Sprint(n, "/burst")}, format: "%.0f",
			better: higher,
		})
	}
	for _, n := range r.Pending {
		t.columns = append(t.columns, column{
			title: fmt.Sprintf("%s: scheduled", short(n)), metric: metric{growth, fmt.Sprint(n, "/schedule")}, format: "%.0f",
			better: higher,
		})
	}
	return t
}

func (r *report) idleTable() table {
	return table{
		workload: idle, title: "Idle",
		text: fmt.Sprintf("%d orders are pending and none is due. The columns are the Redis commands and the PostgreSQL "+
			"transactions per second, and processor time in percent of a core, measured once, for %v. Redis and PostgreSQL run "+
			"for all contenders, even for one that does not use them.",
			slices.Max(r.Pending), r.IdleFor),
		columns: []column{
			{title: "Redis commands/s", metric: metric{idle, "redis"}, format: "%.1f", better: lower},
			{title: "transactions/s", metric: metric{idle, "transactions"}, format: "%.1f", better: lower},
			{title: "process %", metric: metric{idle, "process"}, format: "%.1f", better: lower},
			{title: "Redis %", metric: metric{idle, "Redis"}, format: "%.1f", better: lower},
			{title: "PostgreSQL %", metric: metric{idle, "PostgreSQL"}, format: "%.1f", better: lower},
			{title: "RabbitMQ %", metric: metric{idle, "RabbitMQ"}, format: "%.1f", better: lower},
		},
	}
}

func (r *report) memoryTable() table {
	return table{
		workload: contender.Memory, title: "Memory", limits: []string{bareZADD},
		text: fmt.Sprintf("Bytes for each of %d pending orders, beside the rows of the shop's tables. Redis, RabbitMQ and own "+
			"tables: growth per pending order. Process: the resident memory of the contender divided by the pending orders. Own "+
			"tables are on disk and include their indexes; messages of RabbitMQ are also on disk.",
			slices.Max(r.Pending)),
		columns: []column{
			{title: "Redis", metric: metric{contender.Memory, "redis"}, format: "%.0f", better: lower},
			{title: "/ bare ZSET", metric: metric{contender.Memory, "redis"}, format: "%.2f", ratio: bareZADD},
			{title: "process", metric: metric{contender.Memory, "process"}, format: "%.0f", better: lower},
			{title: "RabbitMQ", metric: metric{contender.Memory, "rabbit"}, format: "%.0f", better: lower},
			{title: "own tables", metric: metric{contender.Memory, "tables"}, format: "%.0f", better: lower},
		},
	}
}

// latenessColumns returns the columns of a lateness, of which orders is the number of values. prefix comes before the
// names of the metrics.
func latenessColumns(workload, prefix string, orders int) (columns []column) {
	for _, c := range []struct{ title, name string }{{"p50", "p50"}, {"p99", "p99"}, {"p99.9", "p999"}, {"max", "max"}} {
		if c.name == "p999" && orders < minP999 {
			continue
		}
		columns = append(columns,
			column{title: c.title, metric: metric{workload, prefix + c.name}, format: "%.1f", scale: 1000, better: lower})
	}
	return append(columns,
		column{title: "not cancelled", metric: metric{workload, prefix + "pending"}, format: "%.0f", better: lower})
}

func lossColumns(workload string) []column {
	return []column{
		{title: "not cancelled", metric: metric{workload, "pending"}, format: "%.0f", better: lower},
		{title: "delivered again", metric: metric{workload, "doubled"}, format: "%.0f", better: lower},
		{title: "latest, s", metric: metric{workload, "max"}, format: "%.2f", better: lower, unless: metric{workload, "pending"}},
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

// write writes the tables to out, and the report and its plots to files.
func (r *report) write(out io.Writer) error {
	var text strings.Builder
	text.WriteString("# Side by side\n\n" + r.warning() +
		"This report compares ways to time out orders, on the same orders and the same servers. Each way cancels an order with\n" +
		"the shop's own statement. A figure is the median of all measurements that did not fail. The least and the greatest value\n" +
		"are in parentheses.\n\n")
	for _, line := range append(r.setup, r.describeRun()) {
		fmt.Fprintf(&text, "- %s\n", line)
	}
	for _, t := range r.tables() {
		r.writeTable(&text, t)
		if err := r.writePlot(&text, t); err != nil {
			return err
		}
	}
	r.writeBetter(&text)
	r.writeContenders(&text)
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
	reason := "several contenders ran at the same time"
	if r.Lanes == 1 {
		reason = "its workloads are small"
	}
	return "Quick run: it checks that each contender works. Its figures mean nothing, because " + reason + ".\n\n"
}

func (r *report) describeRun() string {
	return fmt.Sprintf("Rounds: %d; the contenders take turns, in an order that each round draws at random. The tables crash, store "+
		"lost, growth, idle and memory, and the column \"keeps up with\", have one value for each contender", r.results.completed())
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

// writeTable writes a table in Markdown, or nothing if no row has a value or a reason why it has none.
func (r *report) writeTable(text *strings.Builder, t table) {
	rows := r.rowNames(t.limits...)
	if !slices.ContainsFunc(rows, func(row string) bool {
		return r.hasValue(t, row) || r.results.cannot[row][t.workload] != ""
	}) {
		return
	}
	fmt.Fprintf(text, "\n## %s\n\n%s\n\n| |", t.title, t.text)
	for _, c := range t.columns {
		fmt.Fprintf(text, " %s |", c.title)
	}
	text.WriteString("\n| --- |" + strings.Repeat(" ---: |", len(t.columns)) + "\n")
	for _, row := range rows {
		if reason := r.results.cannot[row][t.workload]; reason != "" && !r.hasValue(t, row) {
			fmt.Fprintf(text, "| %s | %s |%s\n", row, cannot(reason), strings.Repeat(" |", len(t.columns)-1))
			continue
		}
		fmt.Fprintf(text, "| %s |", row)
		for _, c := range t.columns {
			fmt.Fprintf(text, " %s |", r.cell(row, c))
		}
		text.WriteString("\n")
	}
}

func cannot(reason string) string {
	if strings.HasPrefix(reason, "failed") || strings.HasPrefix(reason, "not measured") {
		return reason
	}
	return "cannot: " + reason
}

// cell returns the median of a metric, with the least and the greatest value if there are several, or a dash if there
// is none.
func (r *report) cell(row string, c column) string {
	values := slices.Clone(r.results.of(row, c.metric))
	if len(values) == 0 {
		return "–"
	}
	if c.ratio != "" {
		base := median(r.results.of(c.ratio, c.metric))
		if math.IsNaN(base) || base == 0 {
			return "–"
		}
		return fmt.Sprintf(c.format, median(values)/base)
	}
	if c.scale != 0 {
		for i := range values {
			values[i] *= c.scale
		}
	}
	least, greatest := fmt.Sprintf(c.format, slices.Min(values)), fmt.Sprintf(c.format, slices.Max(values))
	middle := fmt.Sprintf(c.format, median(values))
	if least == greatest {
		return middle
	}
	return fmt.Sprintf("%s (%s–%s)", middle, least, greatest)
}

// writeBetter lists the contenders that are better than ours, for each column in which one direction is better.
func (r *report) writeBetter(text *strings.Builder) {
	const most = 5 // names in a line
	if !slices.Contains(r.rowNames(), ours.Name) {
		return
	}
	text.WriteString("\n## Where others are better than ours\n\nA line has the medians of a column, the best first. Only differences " +
		"of at least 5 % count; if the ranges in the table overlap, a difference can be chance. The lines compare only contenders " +
		"that have a value in the column. The lateness after a fault is compared only if all orders were cancelled.\n\n")
	for _, t := range r.tables() {
		for _, c := range t.columns {
			names := r.betterThanOurs(c)
			if len(names) == 0 {
				continue
			}
			if more := len(names) - most; more > 0 {
				names = append(names[:most], fmt.Sprintf("and %d more", more))
			}
			fmt.Fprintf(text, "- %s, %s, ours %s: %s\n", t.title, c.title, r.cell(ours.Name, c), strings.Join(names, "; "))
		}
	}
}

// betterThanOurs returns the contenders with a better median than ours, each with the median, the best first. It leaves
// out differences of less than 5 %, contenders without a value, and those that [column.unless] excludes.
func (r *report) betterThanOurs(c column) (names []string) {
	const margin = 0.05
	if c.better == 0 {
		return nil
	}
	type rival struct {
		name  string
		value float64
	}
	var rivals []rival
	base := median(r.results.of(ours.Name, c.metric))
	for _, name := range r.rowNames() {
		value := median(r.results.of(name, c.metric))
		gain := value - base
		if c.better == lower {
			gain = -gain
		}
		// If a value is absent, it is NaN, and the comparisons are false.
		excluded := median(r.results.of(name, c.unless)) > 0
		if gain > margin*min(math.Abs(value), math.Abs(base)) && !excluded {
			rivals = append(rivals, rival{name, value})
		}
	}
	slices.SortFunc(rivals, func(a, b rival) int {
		if c.better == higher {
			a, b = b, a
		}
		return cmp.Compare(a.value, b.value)
	})
	for _, rival := range rivals {
		names = append(names, fmt.Sprintf("%s "+c.format, rival.name, rival.value*cmp.Or(c.scale, 1)))
	}
	return names
}

// writeContenders writes how each contender works, its settings and its source.
func (r *report) writeContenders(text *strings.Builder) {
	text.WriteString("\n## Contenders\n\n| | Way | Settings | Source |\n| --- | --- | --- | --- |\n")
	for _, c := range r.contenders {
		fmt.Fprintf(text, "| %s | %s | %s | %s |\n", c.Name, c.Way, c.Settings, c.Source)
	}
}

// writePlot writes the plot of a table to a file beside the report, and a link to it to text. It writes nothing if the
// table has no plot or no values.
func (r *report) writePlot(text *strings.Builder, t table) error {
	has := func(row string) bool { return r.hasValue(t, row) }
	if !slices.ContainsFunc(r.rowNames(), has) {
		return nil
	}
	var svg string
	switch t.workload {
	case burst:
		svg = r.barPlot("orders/s from the due instant to the last commit", metric{burst, "rate"}, oneStatement)
	case steady:
		svg = r.rangePlot(fmt.Sprintf("milliseconds late at %d orders/s: p50, p99 and max", r.Steady[0]), fmt.Sprint(r.Steady[0], "/"))
	case growth:
		svg = r.linePlot(fmt.Sprintf("orders/s of a burst of %d beside pending orders", r.GrowthDue))
	default:
		return nil
	}
	name := strings.TrimSuffix(filepath.Base(r.file), ".md") + "-" + t.workload + ".svg"
	fmt.Fprintf(text, "\n![%s](%s)\n", t.title, name)
	return os.WriteFile(filepath.Join(filepath.Dir(r.file), name), []byte(svg), 0o644)
}
