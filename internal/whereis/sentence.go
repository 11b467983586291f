package whereis

import (
	"fmt"
	"strings"
	"time"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
)

// sentence says in plain words what has happened to an order, and what happens next.
func (f *facts) sentence() string {
	switch {
	case !f.pending():
		return f.ended()
	case f.overdue() <= 0:
		return f.waiting()
	}
	return fmt.Sprintf("It is overdue by %s: %s.", duration(f.overdue()), f.reason())
}

// ended says how the order has ended.
func (f *facts) ended() string {
	end, next := "It was cancelled", "Nothing more happens."
	if f.Status == order.Paid {
		end = "It was paid"
	}
	by, known := map[string]string{
		"": "", "worker": " by a worker", "customer": " by its customer", "operator": " by an operator",
	}[f.EndedBy]
	if !known {
		by = " by the " + f.EndedBy
	}
	if f.owed {
		next = "Something of it is owed or must be checked again, so it is not removed yet."
	}
	late := ""
	if f.Status == order.Cancelled && f.EndedBy != string(order.Customer) {
		late = fmt.Sprintf(", %s after its due time", duration(f.EndedAt.Sub(f.DueAt)))
	}
	return fmt.Sprintf("%s%s at %s%s. %s", end, by, clock(*f.EndedAt), late, next)
}

// waiting says who cancels an order that is not due yet.
func (f *facts) waiting() string {
	why, who, when, note := "It waits for its payment.", "a worker", "at", ""
	if f.Held {
		why, when = "It is held while its customer pays it elsewhere.", "at the latest at" // the hold may be released sooner
	}
	switch {
	case f.alone:
		who = "the reconciler"
	case f.task.Outbox != nil:
		note = fmt.Sprintf(" Its task has waited in the outbox for %s; the relay copies it to Redis.", seconded(f.task.Outbox))
	case f.task.State == unknown:
		note = " Redis does not answer. If it is still down then, the reconciler cancels the order."
	case f.task.State == delay.Absent.String():
		note = " Redis has no task of it. A sweep of the reconciler adds the task, or cancels the order if it is overdue by then."
	case f.task.State == delay.Dead.String():
		who, note = "the reconciler", fmt.Sprintf(" Its task is a dead letter%s. Redrive it.", f.failures())
	}
	return fmt.Sprintf("%s Unless it is paid before, %s cancels it %s %s, in %s.%s", why, who, when, clock(f.DueAt), duration(-f.overdue()), note)
}

// reason says why an overdue order is still pending, and what happens next.
func (f *facts) reason() string {
	const sweep = "A sweep of the reconciler cancels the order"
	t := f.task
	blocker := f.blocker()
	switch {
	case blocker != nil:
		return blocker.String() + ". The order is cancelled after that, unless it was paid"
	case f.alone:
		return "the reconciler has not cancelled it yet. Check that a reconciler runs"
	case t.State == delay.Leased.String() && *t.Left > 0:
		worker := "a worker"
		if t.Owner != "" {
			worker = "the worker " + t.Owner
		}
		return fmt.Sprintf("%s has claimed its task, and the lease ends in %s", worker, seconded(t.Left))
	case t.State == delay.Leased.String():
		return fmt.Sprintf("the lease of its task has ended %s ago, and no worker has claimed it again. Check that a worker runs. %s",
			duration(-time.Duration(*t.Left*float64(time.Second))), sweep)
	case t.State == delay.Dead.String():
		return fmt.Sprintf("its task is a dead letter%s. Each sweep of the reconciler tries the order. Redrive the task when the cause is gone", f.failures())
	case t.State == delay.Scheduled.String() && *t.Left > 0:
		return fmt.Sprintf("a worker tries its task in %s%s", seconded(t.Left), f.failures())
	case t.State == delay.Scheduled.String():
		return "its task is due, and no worker has claimed it. Check that a worker runs. " + sweep
	case t.Outbox != nil:
		return fmt.Sprintf("its task has waited in the outbox for %s. Check that a relay runs and that Redis answers. %s", seconded(t.Outbox), sweep)
	case t.State == unknown:
		return "Redis does not answer. " + sweep
	default:
		return "Redis has no task of it. " + sweep
	}
}

// minBlocked is the age from which on a lock is a reason for an overdue order. With a shorter one, the momentary locks of placements on
// their products would be reasons, too.
const minBlocked = time.Second

// blocks reports whether a lock is the reason that the order is overdue. If its age is not known, it is, unless no worker claims the
// task: a worker that meets a lock tries the task again soon.
func (f *facts) blocks(l Lock) bool {
	if l.Since == nil {
		return f.task.State != delay.Scheduled.String() || *f.task.Left > -minBlocked.Seconds()
	}
	return f.At.Sub(*l.Since) > minBlocked
}

// blocker returns a lock that is the reason that the order is overdue, or nil. It prefers one whose session is known.
func (f *facts) blocker() (found *Lock) {
	for i, l := range f.locks {
		if f.blocks(l) && (found == nil || found.Since == nil && l.Since != nil) {
			found = &f.locks[i]
		}
	}
	return found
}

// failures says how often the task has failed, and why.
func (f *facts) failures() string {
	switch {
	case f.task.Attempts == 0:
		return ""
	case f.task.Error == "":
		return fmt.Sprintf(", after %d failed attempts", f.task.Attempts)
	}
	return fmt.Sprintf(", after %d failed attempts (%s)", f.task.Attempts, strings.TrimSuffix(f.task.Error, "."))
}

// String says who has locked the row.
func (l Lock) String() string {
	row := "the order"
	if l.Row == "product" {
		row = fmt.Sprintf("the product %s", l.ID)
	}
	if l.PID == nil {
		return row + " is locked by one or more other sessions of the database"
	}
	session := fmt.Sprintf("the session %d of the database", *l.PID)
	var more []string
	for _, text := range []*string{l.Application, l.State} {
		if text != nil && *text != "" {
			more = append(more, *text)
		}
	}
	if len(more) > 0 {
		session += fmt.Sprintf(" (%s)", strings.Join(more, ", "))
	}
	if l.Since != nil {
		session += fmt.Sprintf(", whose transaction began at %s", clock(*l.Since))
	}
	return fmt.Sprintf("%s is locked by %s", row, session)
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func seconded(s *float64) string { return duration(time.Duration(*s * float64(time.Second))) }

// duration returns a duration with the precision that a reader needs.
func duration(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	default:
		return d.Round(time.Second).String()
	}
}
