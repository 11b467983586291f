package reconcile

import "time"

// Outcome is how a sweep went.
type Outcome string

// A degraded sweep had no Redis and did what the table alone allows; a failed one met an error.
const (
	OK       Outcome = "ok"
	Degraded Outcome = "degraded"
	Failed   Outcome = "failed"
)

// Report is what one sweep found and repaired.
type Report struct {
	StartedAt time.Time `json:"started_at"` // by this machine's clock
	Took      float64   `json:"took_seconds"`
	Full      bool      `json:"full"` // all pending rows, not only those near their deadlines
	Outcome   Outcome   `json:"outcome"`
	Error     string    `json:"error"` // why the outcome is not ok

	Examined int `json:"examined"` // pending rows compared with the queue
	Dead     int `json:"dead"`     // of them, those whose task is a dead letter: left to be redriven

	// The repairs, by reason.
	Missing  int `json:"missing"`  // tasks that the queue did not have, added
	Late     int `json:"late"`     // tasks scheduled too late, moved forward
	Orphaned int `json:"orphaned"` // tasks of no row, removed
	Overdue  int `json:"overdue"`  // rows long past their deadlines, timed out without the queue
}

// Repairs is the number of all repairs.
func (r Report) Repairs() int { return r.Missing + r.Late + r.Orphaned + r.Overdue }

// fail notes the first error; a failed sweep is worse than a degraded one.
func (r *Report) fail(outcome Outcome, err error) {
	if r.Outcome == Failed || r.Outcome == outcome {
		return
	}
	r.Outcome, r.Error = outcome, err.Error()
}
