package parttest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/testenv"
)

// Published is a publisher of tasks that only records them.
type Published struct {
	mu    sync.Mutex
	msgs  []delay.Message
	sizes []int // the number of messages in each call of Publish
}

// Publish records the messages.
func (p *Published) Publish(_ context.Context, msgs ...delay.Message) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.msgs = append(p.msgs, msgs...)
	p.sizes = append(p.sizes, len(msgs))
	return true
}

// All returns the recorded messages.
func (p *Published) All() []delay.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.msgs)
}

// Take returns the recorded messages, and forgets them.
func (p *Published) Take() []delay.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	msgs := p.msgs
	p.msgs = nil
	return msgs
}

// Of returns how often the task with an id was published.
func (p *Published) Of(id fmt.Stringer) (times int) {
	for _, m := range p.All() {
		if m.ID == id.String() {
			times++
		}
	}
	return times
}

// Calls returns the number of messages of each call of Publish.
func (p *Published) Calls() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sizes)
}

// Notified is a notifier that only counts the notifications.
type Notified struct {
	mu     sync.Mutex
	counts map[string]int // by customer and subject
}

// Notify counts a notification of a customer about a subject, for instance an order.
func (n *Notified) Notify(customer, subject string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.counts == nil {
		n.counts = map[string]int{}
	}
	n.counts[customer+" "+subject]++
}

// Of returns how often a customer was notified about a subject.
func (n *Notified) Of(customer, subject fmt.Stringer) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.counts[customer.String()+" "+subject.String()]
}

// Handle passes the tasks with the given ids, strings or UUIDs, to a handler, and returns the outcomes.
func Handle[ID any](t testing.TB, handler delay.Handler, ids ...ID) []delay.Outcome {
	t.Helper()
	tasks := make([]delay.Task, len(ids))
	for i, id := range ids {
		tasks[i].ID = fmt.Sprint(id)
	}
	outcomes, err := handler(t.Context(), tasks)
	testenv.Must(t, err)
	if len(outcomes) != len(ids) {
		t.Fatalf("the handler returns %d outcomes for %d tasks", len(outcomes), len(ids))
	}
	return outcomes
}
