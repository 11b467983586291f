package app

import (
	"context"
	"fmt"
	"time"

	"example.com/shop/internal/delay"
)

// assessMemory says for each Redis server whether it may drop tasks when its memory is full. That is no failure of the
// doctor, because the reconciler puts back what is missing. In a service without Redis there is nothing to say.
func (p *Process) assessMemory(ctx context.Context) (all []assessment) {
	if p.Redis == nil {
		return nil
	}
	servers, err := p.readMemory(ctx)
	if err != nil {
		return []assessment{{"note", fmt.Sprintf("%v: the policy of Redis is not read: %v", ErrUnchecked, err)}}
	}
	for _, m := range servers {
		all = append(all, assessEviction(m, p.Kinds.Bound()))
	}
	return all
}

func (p *Process) readMemory(ctx context.Context) ([]delay.Memory, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return delay.ReadMemory(ctx, p.Redis)
}

// assessEviction describes what the policy of one server means for the service. bound is how late an order may be
// cancelled whose task is missing.
func assessEviction(m delay.Memory, bound time.Duration) assessment {
	server := "Redis"
	if m.Node != "" {
		server += " " + m.Node
	}
	switch {
	case m.Policy == "":
		return assessment{"note", server + " does not tell its maxmemory-policy: it must be noeviction"}
	case m.EvictsTasks():
		return assessment{"warn", fmt.Sprintf("the maxmemory-policy of %s is %s, so it drops tasks when its memory is "+
			"full; it has evicted %d keys since it started. The next sweep finds that a task is missing, so what was due "+
			"may be late by up to %v. Set maxmemory-policy to noeviction, and let nothing else use this Redis",
			server, m.Policy, m.Evicted, bound)}
	case m.Policy == "noeviction":
		return assessment{"ok", "the maxmemory-policy of " + server + " is noeviction"}
	case m.Limit == 0:
		return assessment{"note", fmt.Sprintf("the maxmemory-policy of %s is %s, but it evicts nothing, because its "+
			"maxmemory is 0: set the policy to noeviction before you limit its memory", server, m.Policy)}
	default:
		return assessment{"ok", fmt.Sprintf("the maxmemory-policy of %s is %s, which evicts no tasks, because they have "+
			"no expiry", server, m.Policy)}
	}
}

// memoryAgain is the time after which a server that did not answer is asked for its policy again.
const memoryAgain = 5 * time.Second

// warnOfEviction logs a warning for each Redis server that may drop tasks. If Redis does not answer when the process
// starts, it waits until Redis does.
func (p *Process) warnOfEviction(ctx context.Context) {
	if p.Redis == nil {
		return
	}
	servers, err := p.readMemory(ctx)
	for ; err != nil; servers, err = p.readMemory(ctx) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(memoryAgain):
		}
	}
	for _, m := range servers {
		if a := assessEviction(m, p.Kinds.Bound()); a.verdict == "warn" {
			p.Log.Warn(a.text)
		}
	}
}
