package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// overdue times out the rows that are overdue, and remembers between sweeps what keeps it from that.
type overdue struct {
	mu    sync.Mutex
	after string // where the next walk over the overdue rows begins

	// The rows that could not be timed out. A walk passes over them, so that it reaches the others.
	why map[string]error
	// The same rows by the attempts that failed, the longest ago first. A part has at least two rows, of which at least
	// one cannot be timed out. Some of the rows may have ended since.
	parts [][]string
	alone []string
	// mended is set when a row was timed out that had failed: the next walk tries all of them together.
	mended bool

	most int // rows in why; more are tried with their page in each sweep
}

const (
	// walkBudget is what a sweep spends on pages of overdue rows of which it can time out at most half. It is for
	// thousands of pages: those that failed before cost a read. The next sweep goes on after them.
	walkBudget = 10 * time.Second
	// aloneBudget is what a sweep spends on rows that failed alone.
	aloneBudget = 200 * time.Millisecond
	mostFailing = 100_000
)

// apartBudget is what a sweep spends on taking apart what failed together: half an interval, so that sweeps keep to their
// schedule. The next sweep goes on.
func (r *Reconciler) apartBudget() time.Duration {
	return max(min(r.gap/2, 10*time.Second), time.Second)
}

// walk times out the overdue rows, page by page. A page that cannot be timed out is left to [overdue.takeApart], a page
// that other sessions hold to the next sweep: neither keeps the pages after it waiting.
func (o *overdue) walk(ctx context.Context, t Timeouts, grace time.Duration, report *Report) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mended {
		clear(o.why)
		o.parts, o.alone, o.mended = nil, nil, false
	}
	resumed := o.after != ""      // the rows before it come at the end
	seen := make(map[string]bool) // of the rows in why
	for spent := time.Duration(0); spent < walkBudget; {
		began := time.Now()
		ids, next, err := t.Overdue(ctx, o.after, grace, pageSize)
		o.after = next // "" with an error: the next sweep begins anew
		if err != nil {
			return fmt.Errorf("look for overdue rows: %w", err)
		}
		done, held, err := o.try(ctx, t, o.fresh(ids))
		report.Overdue += done
		report.Locked += held
		if err != nil {
			return err
		}
		for _, id := range ids {
			if o.why[id] != nil {
				seen[id] = true
			}
		}
		if 2*done <= len(ids) {
			spent += time.Since(began)
		}
		switch {
		case next != "":
		case resumed:
			resumed = false
			report.Locked = 0 // all are counted from the beginning
			clear(seen)
		default:
			maps.DeleteFunc(o.why, func(id string, _ error) bool { return !seen[id] }) // they have ended
			return nil
		}
	}
	return nil
}

// fresh returns the ids that have not failed before.
func (o *overdue) fresh(ids []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return o.why[id] != nil })
}

// try times out rows. If they cannot be, it remembers them: its error is only about a table that cannot be used now.
func (o *overdue) try(ctx context.Context, t Timeouts, ids []string) (done, held int, err error) {
	if len(ids) == 0 {
		return 0, 0, nil
	}
	done, held, err = t.TimeOut(ctx, ids)
	switch {
	case err == nil:
		o.forget(ids)
	case errors.Is(err, ErrUnavailable) || ctx.Err() != nil:
		o.forget(ids)
		return done, held, fmt.Errorf("time out overdue rows: %w", err)
	case len(o.why) < o.most || o.why[ids[0]] != nil:
		o.remember(ids, err)
	}
	return done, held, nil
}

func (o *overdue) remember(ids []string, err error) {
	for _, id := range ids {
		o.why[id] = err
	}
	if len(ids) == 1 {
		o.alone = append(o.alone, ids[0])
	} else {
		o.parts = append(o.parts, ids)
	}
}

func (o *overdue) forget(ids []string) {
	for _, id := range ids {
		delete(o.why, id)
	}
}

// takeApart finds the rows that cannot be timed out among those that failed together: it tries a tenth of them at a
// time, and tenths of these, until they stand alone. One among 1,000 takes 30 statements, 1,000 among 1,000 take 1,110.
// When all stand alone it tries a few again.
func (o *overdue) takeApart(ctx context.Context, t Timeouts, budget time.Duration, report *Report) (err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer func() { report.stuck(len(o.why), o.reasons()) }()
	if len(o.parts) == 0 {
		return o.tryAlone(ctx, t, report)
	}
	for began := time.Now(); len(o.parts) > 0 && time.Since(began) < budget; {
		part := o.failing(o.parts[0])
		o.parts = o.parts[1:]
		for piece := range slices.Chunk(part, max(1, (len(part)+9)/10)) {
			done, held, err := o.try(ctx, t, piece)
			report.Overdue += done
			report.Locked += held
			if err != nil {
				o.forget(part) // the next walk tries them
				return err
			}
		}
		if len(part) > 0 && len(o.failing(part)) == 0 { // though it failed as a whole
			o.mended = true
			return nil
		}
	}
	return nil
}

// tryAlone tries a few of the rows again that failed alone.
func (o *overdue) tryAlone(ctx context.Context, t Timeouts, report *Report) error {
	began := time.Now()
	for range len(o.alone) {
		if time.Since(began) >= aloneBudget {
			return nil
		}
		id := o.failing(o.alone[:1])
		o.alone = o.alone[1:]
		done, held, err := o.try(ctx, t, id)
		report.Overdue += done
		report.Locked += held
		if err != nil {
			return err
		}
		if done > 0 {
			o.mended = true
			return nil
		}
	}
	return nil
}

// failing returns those of the ids that are still remembered.
func (o *overdue) failing(ids []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return o.why[id] == nil })
}

// reasons returns why the first few rows could not be timed out.
func (o *overdue) reasons() []error {
	const few = 3
	var reasons []error
	for _, part := range append([][]string{o.alone}, o.parts...) {
		for _, id := range o.failing(part) {
			if reasons = append(reasons, fmt.Errorf("%s: %w", id, o.why[id])); len(reasons) == few {
				return reasons
			}
		}
	}
	return reasons
}
