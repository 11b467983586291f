package reconcile

import (
	"fmt"
	"strings"
	"time"

	"example.com/shop/internal/clip"
)

// SweepOutcome says how a sweep ended.
type SweepOutcome string

// The outcomes of sweeps.
const (
	OK       SweepOutcome = "ok"
	Partial  SweepOutcome = "partial"  // some overdue rows could not be timed out
	Degraded SweepOutcome = "degraded" // Redis returned an error; the overdue rows were timed out
	Failed   SweepOutcome = "failed"   // the table returned an error
)

// maxReasons is the largest number of errors of failed rows in a report.
const maxReasons = 3

// severity orders the outcomes. If several outcomes apply to a sweep, the most severe one is reported.
var severity = map[SweepOutcome]int{OK: 0, Partial: 1, Degraded: 2, Failed: 3}

// Report says what one sweep found and repaired.
type Report struct {
	StartedAt time.Time    `json:"started_at"` // by this machine's clock, or by the database's in [Reconciler.Last]
	Took      float64      `json:"took_seconds"`
	Outcome   SweepOutcome `json:"outcome"`
	Error     string       `json:"error"` // the reason of the outcome; empty if the outcome is ok

	Examined int `json:"examined"` // pending rows that were compared with the queue
	Dead     int `json:"dead"`     // examined rows whose task is a dead letter, which an operator must redrive

	// The repairs, by reason.
	Missing int `json:"missing"` // missing tasks of rows that were not due; the tasks were added
	Late    int `json:"late"`    // tasks that were due too late and were moved forward
	Overdue int `json:"overdue"` // overdue rows that were timed out without the queue

	// The overdue rows that could not be timed out.
	Locked int `json:"locked"` // because other sessions have locked them
	Failed int `json:"failed"` // because a statement failed on them, or on another row of the same statement
}

// Repairs returns the number of all repairs.
func (r Report) Repairs() int { return r.Missing + r.Late + r.Overdue }

// Clean reports whether the sweep ended without an error that an operator must look at. Rows that other sessions
// have locked are no such error, because the next sweep tries them again.
func (r Report) Clean() bool {
	return r.Outcome == OK || r.Outcome == Partial && r.Failed == 0
}

// worsen sets an outcome and its reason, unless the reason is nil or the current outcome is as severe.
func (r *Report) worsen(outcome SweepOutcome, reason error) {
	if reason != nil && severity[outcome] > severity[r.Outcome] {
		r.Outcome, r.Error = outcome, clip.Text(reason.Error(), 1000)
	}
}

// setFailed sets the number of overdue rows on which statements failed, and the outcome with some of their errors.
// failed has the error of each row by its id.
func (r *Report) setFailed(failed map[string]error) {
	r.Failed = len(failed)
	switch {
	case r.Failed > 0:
		var reasons []string
		for id, err := range failed {
			if reasons = append(reasons, clip.Text(id+": "+err.Error(), 300)); len(reasons) == maxReasons {
				break
			}
		}
		r.worsen(Partial, fmt.Errorf("%d overdue rows cannot be timed out: %s; other sessions have locked %d more",
			r.Failed, strings.Join(reasons, "; "), r.Locked))
	case r.Locked > 0:
		r.worsen(Partial, fmt.Errorf("other sessions have locked %d overdue rows", r.Locked))
	}
}

// Sum returns the sum of the reports of several kinds, with the most severe outcome and its error, and the earliest
// start.
func Sum(reports ...Report) Report {
	sum := Report{Outcome: OK}
	for i, r := range reports {
		if i == 0 || r.StartedAt.Before(sum.StartedAt) {
			sum.StartedAt = r.StartedAt
		}
		if severity[r.Outcome] > severity[sum.Outcome] {
			sum.Outcome, sum.Error = r.Outcome, r.Error
		}
		sum.Took += r.Took
		sum.Examined += r.Examined
		sum.Dead += r.Dead
		sum.Missing += r.Missing
		sum.Late += r.Late
		sum.Overdue += r.Overdue
		sum.Locked += r.Locked
		sum.Failed += r.Failed
	}
	return sum
}
