package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"
	"sync"
	"time"
)

// metric is a figure of a workload.
type metric struct{ workload, name string }

// cell is what one run of one workload has measured of one contender: a line of the file of the results. A run that was
// interrupted goes on with the cells that the file lacks.
type cell struct {
	Workload  string
	Contender string
	Run       int       // from 1; of the workload growth the number of pending orders
	Seed      uint64    // see [options]
	Setup     string    // see [setup]; of the first tries, if there were more later
	At        time.Time // when the workload began
	// Values are the values of the metrics by their workloads and names. A workload can have metrics of others: each
	// that schedules orders measures how fast.
	Values map[string]map[string][]float64 `json:",omitempty"`
	Failed string                          `json:",omitempty"` // why there are no values
}

// clone returns a copy to which values can be added.
func (c cell) clone() cell {
	values := c.Values
	c.Values = nil
	for workload, metrics := range values {
		for name, all := range metrics {
			for _, v := range all {
				c.report(workload, map[string]float64{name: v})
			}
		}
	}
	return c
}

// report adds values of metrics. It ignores NaN, so that a figure that does not exist has no value.
func (c *cell) report(workload string, values map[string]float64) {
	for name, value := range values {
		if math.IsNaN(value) {
			continue
		}
		if c.Values == nil {
			c.Values = map[string]map[string][]float64{}
		}
		if c.Values[workload] == nil {
			c.Values[workload] = map[string][]float64{}
		}
		c.Values[workload][name] = append(c.Values[workload][name], value)
	}
}

// setup is the machine and the versions of the programs with which cells were measured: also a line of the file.
type setup struct {
	Setup string // a short name that is unique in the file
	Lines []string
}

// id identifies what a cell has measured.
type id struct {
	workload, contender string
	run                 int
}

// results holds the cells of a report.
type results struct {
	path string // of the file; "": they are not stored

	mu     sync.Mutex
	setups []setup
	done   map[id]cell
	cannot map[string]map[string]string // why there are no values, by contender and workload
}

// openResults reads the results of earlier runs from a file, which need not exist. With path "" nothing is stored.
func openResults(path string) (*results, error) {
	r := &results{path: path, done: map[id]cell{}, cannot: map[string]map[string]string{}}
	if path == "" {
		return r, nil
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		if err := r.read(lines.Bytes()); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w; remove the line, and its workload is measured again", path, n, err)
		}
	}
	return r, lines.Err()
}

func (r *results) read(line []byte) error {
	if bytes.HasPrefix(line, []byte(`{"Setup"`)) {
		var s setup
		err := json.Unmarshal(line, &s)
		r.setups = append(r.setups, s)
		return err
	}
	var c cell
	err := json.Unmarshal(line, &c)
	r.done[id{c.Workload, c.Contender, c.Run}] = c
	return err
}

// describe stores the setup of the cells that follow, and returns its name.
func (r *results) describe(lines []string) (name string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.setups {
		if slices.Equal(s.Lines, lines) {
			return s.Setup, nil
		}
	}
	s := setup{Setup: fmt.Sprint(len(r.setups) + 1), Lines: lines}
	r.setups = append(r.setups, s)
	return s.Setup, r.append(s)
}

// add adds a cell. It replaces one that failed, or that has less tries.
func (r *results) add(c cell) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done[id{c.Workload, c.Contender, c.Run}] = c
	return r.append(c)
}

func (r *results) append(line any) error {
	if r.path == "" {
		return nil
	}
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(append(text, '\n'))
	return errors.Join(err, file.Close())
}

// has reports whether a workload of a run was measured.
func (r *results) has(workload, contender string, run int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, found := r.done[id{workload, contender, run}]
	return found && c.Failed == ""
}

// of returns the values of a metric, sorted by the run and by the time when they were measured.
func (r *results) of(contender string, m metric) (values []float64) {
	for _, c := range r.cells(contender) {
		values = append(values, c.Values[m.workload][m.name]...)
	}
	return values
}

// cells returns the cells of a contender, sorted by the run and the time.
func (r *results) cells(contender string) []cell {
	r.mu.Lock()
	defer r.mu.Unlock()
	cells := slices.DeleteFunc(slices.Collect(maps.Values(r.done)), func(c cell) bool { return c.Contender != contender })
	slices.SortFunc(cells, func(a, b cell) int {
		if a.Run != b.Run {
			return a.Run - b.Run
		}
		return a.At.Compare(b.At)
	})
	return cells
}

// measured returns the parts whose cells have a setup, and when the first and the last of them were measured.
func (r *results) measured(setup string) (names []string, first, last time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.done {
		if c.Setup != setup {
			continue
		}
		if name := partOf(c.Workload); !slices.Contains(names, name) {
			names = append(names, name)
		}
		if first.IsZero() || c.At.Before(first) {
			first = c.At
		}
		if c.At.After(last) {
			last = c.At
		}
	}
	slices.Sort(names)
	return names, first, last
}

// noteMissing keeps why a contender has no values for a workload, until the program ends.
func (r *results) noteMissing(contender, workload, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cannot[contender] == nil {
		r.cannot[contender] = map[string]string{}
	}
	r.cannot[contender][workload] = reason
}

// whyMissing returns why a contender has no values for a workload, or "".
func (r *results) whyMissing(contender, workload string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if reason := r.cannot[contender][workload]; reason != "" {
		return reason
	}
	for key, c := range r.done {
		if key.contender == contender && key.workload == workload && c.Failed != "" {
			return "failed: " + c.Failed
		}
	}
	return ""
}

// median returns the median of values, which is the mean of the two in the middle if their number is even, or NaN if
// there are none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// quantile returns the q-th quantile of values, or NaN if there are none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}
