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
}

// better tells whether higher or lower values are better, for the list of the contenders that are better than ours.
type better int

const (
	higher better = iota + 1
	lower
)

// tables returns the tables of a run.
func (r *report) tables() []table {
	return []table{
		{
			burst, "Burst",
			fmt.Sprintf("%d orders are due at one instant. The rate counts from that instant to the last commit. The rate "+
				"while working counts from the first commit.", r.Burst),
			[]string{oneStatement}, []column{
				{title: "orders/s", metric: metric{burst, "rate"}, format: "%.0f", better: higher},
				{title: "/ ours", metric: metric{burst, "rate"}, format: "%.2f", ratio: ours.Name},
				{title: "/ one statement", metric: metric{burst, "rate"}, format: "%.2f", ratio: oneStatement},
				{title: "while working", metric: metric{burst, "working"}, format: "%.0f"},
				{title: "delivered again", metric: metric{burst, "doubled"}, format: "%.0f"},
				{title: "not cancelled", metric: metric{burst, "pending"}, format: "%.0f"},
			},
		},
		r.steadyTable(),
		{
			mixed, "Mixed delays",
			fmt.Sprintf("%d orders with a delay of %v are scheduled before %d orders with delays from %v to %v. "+
				"The lateness is that of the latter, in milliseconds.", r.Mixed, 8*r.Unit, r.Mixed, r.Unit, 3*r.Unit),
			nil, latenessColumns(mixed, ""),
		},
		{
			contender.Reschedule, "Reschedule",
			fmt.Sprintf("The deadlines of %d orders move back by %v, and those of %d others forward by %v. "+
				"Milliseconds from the new deadline.", r.Reschedule, 2*r.Unit, r.Reschedule, 2*r.Unit),
			nil, latenessColumns(contender.Reschedule, ""),
		},
		{
			place, "Place over HTTP",
			fmt.Sprintf("%d clients place orders of one item. The contender's process serves them with the shop's own handlers, "+
				"and schedules each order. Each order has an outbox row, and only ours deletes it. The clients send their next request "+
				"after each response, so there is no latency to report.",
				placeClients),
			[]string{pgbenchPlace}, []column{
				{title: "orders/s", metric: metric{place, "rate"}, format: "%.0f", better: higher},
				{title: "/ ours", metric: metric{place, "rate"}, format: "%.2f", ratio: ours.Name},
				{title: "/ pgbench", metric: metric{place, "rate"}, format: "%.2f", ratio: pgbenchPlace},
			},
		},
		{
			crash, "Crash",
			fmt.Sprintf("The process is killed (SIGKILL) when a fifth of %d due orders is cancelled, and starts again at once. "+
				"An order is lost if it is still pending when nothing was cancelled for %v, or for the time after which the "+
				"contender's documentation promises to repeat it.",
				r.Burst, r.PatienceAfterFault),
			nil, lossColumns(crash),
		},
		{
			contender.StoreLost, "Store lost",
			fmt.Sprintf("Redis or RabbitMQ loses its data while %d orders are scheduled. RabbitMQ also restarts.", r.Lost),
			nil, lossColumns(contender.StoreLost),
		},
		r.growthTable(),
		{
			idle, "Idle",
			fmt.Sprintf("%d orders are pending and none is due. Redis commands and PostgreSQL transactions a second, and "+
				"processor time in percent of a core.", r.Pending[len(r.Pending)-1]),
			nil, []column{
				{title: "Redis commands/s", metric: metric{idle, "redis"}, format: "%.1f", better: lower},
				{title: "transactions/s", metric: metric{idle, "transactions"}, format: "%.1f", better: lower},
				{title: "process %", metric: metric{idle, "process"}, format: "%.1f"},
				{title: "Redis %", metric: metric{idle, "Redis"}, format: "%.1f"},
				{title: "PostgreSQL %", metric: metric{idle, "PostgreSQL"}, format: "%.1f"},
				{title: "RabbitMQ %", metric: metric{idle, "RabbitMQ"}, format: "%.1f"},
			},
		},
		{
			contender.Memory, "Memory",
			fmt.Sprintf("Bytes for each of %d pending orders, beside the rows of the shop's tables. The process is its resident "+
				"memory; RabbitMQ is the growth of its own.", r.Pending[len(r.Pending)-1]),
			[]string{bareZADD}, []column{
				{title: "Redis", metric: metric{contender.Memory, "redis"}, format: "%.0f", better: lower},
				{title: "/ bare ZSET", metric: metric{contender.Memory, "redis"}, format: "%.2f", ratio: bareZADD},
				{title: "process", metric: metric{contender.Memory, "process"}, format: "%.0f"},
				{title: "RabbitMQ", metric: metric{contender.Memory, "rabbit"}, format: "%.0f"},
				{title: "own tables", metric: metric{contender.Memory, "tables"}, format: "%.0f"},
			},
		},
	}
}

func latenessColumns(workload, prefix string) (columns []column) {
	for _, name := range []string{"p50", "p99", "p999", "max"} {
		if name == "p999" && prefix == "" {
			continue
		}
		title := strings.ReplaceAll(name, "p999", "p99.9")
		c := column{title: title, metric: metric{workload, prefix + name}, format: "%.1f", scale: 1000}
		if name == "p99" {
			c.better = lower
		}
		columns = append(columns, c)
	}
	return append(columns, column{title: "not cancelled", metric: metric{workload, prefix + "pending"}, format: "%.0f"})
}

func lossColumns(workload string) []column {
	return []column{
		{title: "lost", metric: metric{workload, "lost"}, format: "%.0f", better: lower},
		{title: "delivered again", metric: metric{workload, "doubled"}, format: "%.0f"},
		{title: "latest, s", metric: metric{workload, "max"}, format: "%.1f", better: lower},
	}
}

func (r *report) steadyTable() table {
	t := table{workload: steady, title: "Steady", text: fmt.Sprintf("Deadlines are spread evenly over %v. The lateness is the "+
		"time from the deadline to the commit, in milliseconds. All orders are scheduled before the first deadline, so the "+
		"benchmark sends nothing meanwhile; its own timers were late by the time in the column lag (p99). A contender keeps up "+
		"with a rate if it cancels 99 %% of the orders at most a second later than at the lowest rate.", r.SteadyFor)}
	for _, rate := range r.Steady {
		prefix := fmt.Sprint(rate, "/")
		columns := latenessColumns(steady, prefix)
		columns = slices.Insert(columns[:len(columns)-1], 2,
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

func (r *report) growthTable() table {
	t := table{workload: growth, title: "Growth", limits: []string{bareZADD}, text: fmt.Sprintf(
		"Other orders are pending and not due. Orders scheduled a second, and the rate of a burst of %d orders.",
		r.GrowthDue)}
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
	text.WriteString("# Side by side\n\nWays to time out orders, on the same orders and the same servers. Each cancels an order with " +
		"the shop's own statement.\nFigures are the medians of the rounds, with the least and the greatest value in parentheses.\n\n")
	for _, line := range append(r.setup, r.describeRun()) {
		fmt.Fprintf(&text, "- %s\n", line)
	}
	plots, err := r.plots()
	if err != nil {
		return err
	}
	for _, t := range r.tables() {
		r.writeTable(&text, t)
		if plot, ok := plots[t.workload]; ok {
			fmt.Fprintf(&text, "\n![%s](%s)\n", t.title, plot)
		}
	}
	r.writeBetter(&text)
	r.writeContenders(&text)
	if _, err := io.WriteString(out, text.String()); err != nil {
		return err
	}
	return os.WriteFile(r.file, []byte(text.String()), 0o644)
}

func (r *report) describeRun() string {
	return fmt.Sprintf("Rounds: %d, of the workloads burst and steady; the contenders take turns, and each round begins with "+
		"another one. The other workloads have one round", len(r.results.of(ours.Name, metric{burst, "rate"})))
}

// writeTable writes a table in Markdown, or nothing if no contender has a value.
func (r *report) writeTable(text *strings.Builder, t table) {
	fmt.Fprintf(text, "\n## %s\n\n%s\n\n| |", t.title, t.text)
	for _, c := range t.columns {
		fmt.Fprintf(text, " %s |", c.title)
	}
	text.WriteString("\n| --- |" + strings.Repeat(" ---: |", len(t.columns)) + "\n")
	rows := t.limits
	for _, c := range r.contenders {
		rows = append(rows, c.Name)
	}
	for _, row := range rows {
		if reason := r.results.cannot[row][t.workload]; reason != "" {
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

// cell returns the median of a metric, with the least and the greatest value if there are several.
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

// writeBetter lists the contenders that are better than ours in a column. It leaves out differences of less than 5 %,
// and contenders that have nothing to measure.
func (r *report) writeBetter(text *strings.Builder) {
	text.WriteString("\n## Where others are better than ours\n\nOnly differences of at least 5 % count.\n\n")
	for _, t := range r.tables() {
		for _, c := range t.columns {
			if names := r.betterThanOurs(c); len(names) > 0 {
				fmt.Fprintf(text, "- %s, %s (ours: %s): %s\n", t.title, c.title, r.cell(ours.Name, c), strings.Join(names, "; "))
			}
		}
	}
}

// betterThanOurs returns the contenders with a better median than ours, each with the median, the best first.
func (r *report) betterThanOurs(c column) (names []string) {
	const margin = 1.05
	type rival struct {
		name  string
		value float64
	}
	var rivals []rival
	base := median(r.results.of(ours.Name, c.metric))
	for _, info := range r.contenders {
		value := median(r.results.of(info.Name, c.metric))
		if c.better == higher && value > base*margin || c.better == lower && value*margin < base && value > 0 {
			rivals = append(rivals, rival{info.Name, value})
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

// plots writes the plots beside the report, and returns their file names by workload.
func (r *report) plots() (files map[string]string, err error) {
	files = map[string]string{}
	dir, base := filepath.Dir(r.file), strings.TrimSuffix(filepath.Base(r.file), ".md")
	for workload, svg := range map[string]string{
		burst:  r.barPlot("orders/s from the due instant to the last commit", metric{burst, "rate"}, []string{oneStatement}),
		steady: r.rangePlot(fmt.Sprintf("milliseconds late at %d orders/s: p50, p99 and max", r.Steady[0]), fmt.Sprint(r.Steady[0], "/")),
		growth: r.linePlot(fmt.Sprintf("orders/s of a burst of %d beside pending orders", r.GrowthDue)),
	} {
		files[workload] = base + "-" + workload + ".svg"
		if err := os.WriteFile(filepath.Join(dir, files[workload]), []byte(svg), 0o644); err != nil {
			return nil, err
		}
	}
	return files, nil
}
