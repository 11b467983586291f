package main

import (
	"math"
	"slices"
	"sync"
)

// metric is a figure of a workload.
type metric struct{ workload, name string }

// results holds the values of each contender's metrics, and why a contender has no values.
type results struct {
	mu     sync.Mutex
	rounds int // completed
	values map[string]map[metric][]float64
	cannot map[string]map[string]string // by contender and workload
}

func newResults() *results {
	return &results{values: map[string]map[metric][]float64{}, cannot: map[string]map[string]string{}}
}

// add adds a value of a metric. It ignores NaN, so that a figure that does not exist has no value.
func (r *results) add(contender string, m metric, value float64) {
	if math.IsNaN(value) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.values[contender] == nil {
		r.values[contender] = map[metric][]float64{}
	}
	r.values[contender][m] = append(r.values[contender][m], value)
}

// endRound counts a round.
func (r *results) endRound() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rounds++
}

// completed returns the number of rounds that have ended.
func (r *results) completed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rounds
}

// of returns the values of a metric, in the order in which they were measured.
func (r *results) of(contender string, m metric) []float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.values[contender][m]
}

// noteMissing stores why a contender has no values for a workload.
func (r *results) noteMissing(contender, workload, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cannot[contender] == nil {
		r.cannot[contender] = map[string]string{}
	}
	r.cannot[contender][workload] = reason
}

// median returns the median of values, or NaN if there are none.
func median(values []float64) float64 { return quantile(values, 0.5) }

// quantile returns the q-th quantile of values, or NaN if there are none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}
