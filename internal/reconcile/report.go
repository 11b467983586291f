package reconcile

import (
	"fmt"
	"strings"
	"time"
)

// Outcome is how a sweep went.
type Outcome string

// A partial sweep did all that it could, but rows are left that are overdue and could not be timed out. A degraded
// sweep had no Redis and did what the table alone allows. A failed one met an error.
const (
	OK       Outcome = "ok"
	Partial  Outcome = "partial"
	Degraded Outcome = "degraded"
	Failed   Outcome = "failed"
)

// severity orders the outcomes: a sweep has the worst of those that apply.
var severity = map[Outcome]int{OK: 0, Partial: 1, Degraded: 2, Failed: 3}

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
	Missing  int `json:"missing"`   // tasks that the queue did not have, added
	Late     int `json:"late"`      // tasks scheduled too late, moved forward
	Orphaned int `json:"orphaned"`  // tasks of no row, removed
	Overdue  int `json:"overdue"`   // rows long past their deadlines, timed out without the queue
	SetAside int `json:"set_aside"` // keys with values that the queue cannot use, renamed

	// Rows long past their deadlines that could not be timed out.
	Locked int `json:"locked"` // other sessions hold them
	Failed int `json:"failed"` // the table refused them, or others that they were tried with
}

// Repairs is the number of all repairs.
func (r Report) Repairs() int { return r.Missing + r.Late + r.Orphaned + r.Overdue + r.SetAside }

// Clean reports whether the sweep left nothing to mend: rows that other sessions hold are left to the next sweep.
func (r Report) Clean() bool {
	return r.Outcome == OK || r.Outcome == Partial && r.Failed == 0
}

// fail notes an outcome and its reason, unless the sweep has that outcome already, or a worse one.
func (r *Report) fail(outcome Outcome, reason error) {
	if severity[outcome] > severity[r.Outcome] {
		r.Outcome, r.Error = outcome, clip(reason.Error(), 1000)
	}
}

// clip bounds an error's text: it is logged and stored with each sweep.
func clip(text string, most int) string {
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// stuck notes how many overdue rows could not be timed out, and why the first of them could not.
func (r *Report) stuck(failed int, reasons []error) {
	r.Failed = failed
	switch {
	case r.Failed > 0:
		texts := make([]string, len(reasons))
		for i, reason := range reasons {
			texts[i] = clip(reason.Error(), 300)
		}
		r.fail(Partial, fmt.Errorf("%d overdue rows cannot be timed out: %s; other sessions hold %d more", r.Failed, strings.Join(texts, "; "), r.Locked))
	case r.Locked > 0:
		r.fail(Partial, fmt.Errorf("other sessions hold %d overdue rows", r.Locked))
	}
}
