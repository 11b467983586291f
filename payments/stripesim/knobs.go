package stripesim

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Knobs make the simulator misbehave. They apply from the next request and the next event on.
type Knobs struct {
	// API is the behaviour of the paths below /v1:
	//   - up: requests are answered;
	//   - down: connections are closed without an answer;
	//   - hung: a request is not answered until the knob changes;
	//   - loses_answers: requests are executed, and then their connections are closed without an answer;
	//   - errors: requests are answered with status 500 and have no effect. As at Stripe, the 500 of a POST with an
	//     idempotency key is stored and replayed;
	//   - executes_then_500: as errors, but requests that succeed have their effects;
	//   - empty: requests are executed, and those that succeed are answered with {}.
	API string `json:"api"`
	// Sessions is:
	//   - accept;
	//   - refuse: creating a session is answered with status 400;
	//   - complete_unpaid: a customer who pays completes the session, and the money comes when the knob changes.
	Sessions string `json:"sessions"`
	// Refunds is the result of refunds:
	//   - succeed: at once;
	//   - pending: until the knob changes;
	//   - fail: a refund is created as pending, and then fails;
	//   - cancel: a refund is created as pending, and is then canceled;
	//   - require_action: until the knob changes, the customer must act;
	//   - fail_later: a refund succeeds at once, and fails after [Config.RefundFails];
	//   - refuse_disputed, refuse_balance: a refund is answered with status 400, as if the charge were disputed, or as
	//     if the account's balance were too low.
	Refunds string `json:"refunds"`
	// Webhooks is the delivery of events:
	//   - normal;
	//   - lost: events are not sent;
	//   - doubled: each event is sent twice;
	//   - late: events are sent after [Config.LateDelay];
	//   - reordered: events are collected for [Config.ReorderDelay], and sent with the newest first;
	//   - disabled: the endpoint is disabled, and gets no events.
	Webhooks string `json:"webhooks"`
	// Key is the API key that is valid. Requests with another key are answered with status 401.
	// A key with _live_ has the mode live, any other the mode test. A key sees only the objects of its mode.
	Key string `json:"key"`
	// Account is the account of the key. A key sees only the objects of its account.
	Account string `json:"account"`
	// Denied are the operations that the key may not do, separated by commas, for instance "GET /v1/account". They are
	// answered with status 403.
	Denied string `json:"denied"`
	// Rate and EndpointRate are the calls a second that the API answers, of all operations together and of each one.
	// Others are answered with 429. 0 stands for no limit. Stripe's limits are 100 and 25, in test mode 25 and 25.
	Rate         int `json:"rate"`
	EndpointRate int `json:"endpoint_rate"`
	// LatencyMS is the time in milliseconds before a request is executed.
	LatencyMS int `json:"latency_ms"`
	// Locks is wait, or timeout: then a request that needs an object that another one changes is answered with 429.
	Locks string `json:"locks"`
	// Events are the types of the events that the merchant's endpoint receives, separated by commas, or * for all.
	Events string `json:"events"`
}

func (k Knobs) validate() error {
	for _, knob := range []struct {
		name, value string
		known       []string
	}{
		{"api", k.API, []string{"up", "down", "hung", "loses_answers", "errors", "executes_then_500", "empty"}},
		{"locks", k.Locks, []string{"wait", "timeout"}},
		{"sessions", k.Sessions, []string{"accept", "refuse", "complete_unpaid"}},
		{"refunds", k.Refunds, []string{
			"succeed", "pending", "fail", "cancel", "require_action", "fail_later", "refuse_disputed", "refuse_balance",
		}},
		{"webhooks", k.Webhooks, []string{"normal", "lost", "doubled", "late", "reordered", "disabled"}},
	} {
		if !slices.Contains(knob.known, knob.value) {
			known := strings.Join(knob.known, ", ")
			return fmt.Errorf("the knob %s is %q, want one of %s", knob.name, knob.value, known)
		}
	}
	if min(k.Rate, k.EndpointRate, k.LatencyMS) < 0 {
		return fmt.Errorf("one of the knobs rate, endpoint_rate and latency_ms is negative, want at least 0")
	}
	if k.Key == "" {
		return fmt.Errorf("the knob key is empty, want an API key")
	}
	return nil
}

// defaultAccount is the account of the key until the knob account changes.
const defaultAccount = "acct_simulated"

// permit returns an error if the key may not do the operation of a request.
func (k Knobs) permit(r *http.Request) error {
	if !slices.Contains(splitList(k.Denied), r.Pattern) {
		return nil
	}
	return &apiError{
		status: http.StatusForbidden, Type: "invalid_request_error", Code: "more_permissions_required",
		Message: "The provided key does not have the required permissions for this endpoint on account '" +
			k.Account + "'.",
	}
}

// splitList returns the elements of a list that are separated by commas.
func splitList(list string) []string {
	elements := strings.Split(list, ",")
	for i := range elements {
		elements[i] = strings.TrimSpace(elements[i])
	}
	return elements
}

// Knobs returns the current knobs.
func (s *Simulator) Knobs() Knobs { return s.knobs.get() }

// SetKnobs replaces all knobs. Account, Events and Locks get their defaults if they are "". SetKnobs returns an error,
// and changes nothing, if a value is unknown.
func (s *Simulator) SetKnobs(k Knobs) error {
	k.Account, k.Events, k.Locks = cmp.Or(k.Account, defaultAccount), cmp.Or(k.Events, "*"), cmp.Or(k.Locks, "wait")
	if err := k.validate(); err != nil {
		return err
	}
	s.knobs.set(k)
	wake(s.wakeTimers) // pending refunds may end now
	return nil
}

// knobs holds the current knobs, and lets requests wait for a change.
type knobs struct {
	mu      sync.Mutex
	current Knobs
	changed chan struct{} // closed by the next change
	stopped bool          // no request waits
}

func newKnobs(key string) knobs {
	return knobs{
		current: Knobs{
			API: "up", Sessions: "accept", Refunds: "succeed", Webhooks: "normal", Key: key, Account: defaultAccount,
			Events: "*", Locks: "wait",
		},
		changed: make(chan struct{}),
	}
}

func (k *knobs) get() Knobs {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current
}

func (k *knobs) set(to Knobs) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.current = to
	k.wake()
}

// stop ends all waits. Later requests do not wait either, until start is called: a client may repeat a request at once,
// and such a request must not delay the shutdown of the server.
func (k *knobs) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	k.wake()
}

func (k *knobs) start() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = false
}

// wake ends all waits. The caller holds mu.
func (k *knobs) wake() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// delay waits for the latency, or until a knob changes. A client that disconnects does not end the wait, because its
// request is executed.
func (k *knobs) delay() {
	k.mu.Lock()
	latency, changed, stopped := k.current.LatencyMS, k.changed, k.stopped
	k.mu.Unlock()
	if latency == 0 || stopped {
		return
	}
	timer := time.NewTimer(time.Duration(latency) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	}
}

// awaitAnswers returns the state of the API for a request, as soon as the API is not hung. If the API is down, or the
// wait ends although the API is still hung, awaitAnswers closes the request's connection.
func (k *knobs) awaitAnswers(ctx context.Context) string {
	k.mu.Lock()
	api, changed, stopped := k.current.API, k.changed, k.stopped
	k.mu.Unlock()
	if api == "hung" && !stopped {
		select {
		case <-ctx.Done():
		case <-changed:
			api = k.get().API
		}
	}
	if api == "down" || api == "hung" {
		panic(http.ErrAbortHandler)
	}
	return api
}
