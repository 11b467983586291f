package stripesim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v85"

	"example.com/shop/internal/testenv"
)

// events returns the events about sessions and refunds, but not those about charges. The newest is the first.
func (f *fixture) events(t testing.TB) (all []*stripe.Event) {
	t.Helper()
	for _, body := range f.eventBodies(t) {
		e := &stripe.Event{}
		testenv.Must(t, json.Unmarshal([]byte(body), e))
		if !strings.HasPrefix(string(e.Type), "charge.") {
			all = append(all, e)
		}
	}
	return all
}

// eventBodies returns all events as webhooks carry them, the newest first.
func (f *fixture) eventBodies(t testing.TB) []string {
	t.Helper()
	return f.strings(t, `SELECT body FROM stripesim.events ORDER BY seq DESC`)
}

func TestWebhookCarriesTheEvent(t *testing.T) {
	r := newReceiver(t)
	f := newFixture(t, r.configure)
	s := f.create(t)
	p := &stripe.CheckoutSessionExpireParams{}
	p.SetIdempotencyKey("close-1")
	expired, err := f.stripe.V1CheckoutSessions.Expire(t.Context(), s.ID, p)
	testenv.Must(t, err)
	sent := r.await(t, 1)[0] // ConstructEvent has checked its signature and its API version
	for _, e := range []*stripe.Event{&sent, f.events(t)[0]} {
		var object stripe.CheckoutSession
		testenv.Must(t, json.Unmarshal(e.Data.Raw, &object))
		if e.ID != sent.ID || e.ID[:4] != "evt_" || e.Object != "event" || e.Type != "checkout.session.expired" ||
			e.APIVersion != stripe.APIVersion || e.Livemode || e.Created == 0 ||
			e.Request.ID != expired.LastResponse.RequestID || e.Request.IdempotencyKey != "close-1" ||
			e.PendingWebhooks != 1 || object.ID != s.ID || object.ClientReferenceID != "attempt-1" ||
			object.Status != stripe.CheckoutSessionStatusExpired {
			t.Errorf("the event is %+v with the object %s", e, e.Data.Raw)
		}
	}
}

func TestPaymentEvent(t *testing.T) {
	r := newReceiver(t)
	f := newFixture(t, r.configure)
	s := f.paid(t)
	e := r.await(t, 1)[0]
	var object stripe.CheckoutSession
	testenv.Must(t, json.Unmarshal(e.Data.Raw, &object))
	if e.Type != stripe.EventTypeCheckoutSessionCompleted || e.Request.ID != "" ||
		object.ID != s.ID || object.PaymentIntent.ID != s.PaymentIntent.ID || object.AmountTotal != sessionTotal ||
		object.PaymentStatus != stripe.CheckoutSessionPaymentStatusPaid {
		t.Errorf("the event is %+v with the object %s", e, e.Data.Raw)
	}
}

func TestFailedWebhookIsRetried(t *testing.T) {
	r := newReceiver(t)
	f := newFixture(t, r.configure)
	statuses := []int{http.StatusInternalServerError, http.StatusFound, http.StatusNotFound, http.StatusAccepted}
	r.answer = func(try int) int { return statuses[try-1] }
	f.paid(t)
	all := r.await(t, 4)
	for _, e := range all {
		if e.ID != all[0].ID {
			t.Errorf("the retries have the events %s and %s, want the same one", all[0].ID, e.ID)
		}
	}
	testenv.Eventually(t, "a delivered webhook", func() bool { return f.eventsIn(t, "delivered") == 1 })
}

func (f *fixture) eventsIn(t testing.TB, state string) int {
	t.Helper()
	return f.count(t, `SELECT count(*) FROM stripesim.events WHERE state = $1`, state)
}

// TestRetriesOverDays has a receiver that is away for three days of simulated time. The simulator runs no loop: each
// step is one look for webhooks that are due.
func TestRetriesOverDays(t *testing.T) {
	r := newReceiver(t)
	f := newStoppedFixture(t, r.configure)
	r.answer = func(int) int { return http.StatusServiceUnavailable }
	f.paid(t)
	post := func(seconds int) (response, string) {
		t.Helper()
		body := fmt.Sprintf(`{"seconds":%d}`, seconds)
		return f.send(t, http.MethodPost, "/sim/webhooks/advance", "application/json", body)
	}
	advance := func(by time.Duration) {
		t.Helper()
		if res, body := post(int(by / time.Second)); res.StatusCode != http.StatusNoContent {
			t.Fatalf("advancing by %v answered %d %s, want 204", by, res.StatusCode, body)
		}
	}
	// look returns the number of all webhooks that have arrived.
	look := func() int {
		t.Helper()
		testenv.Must(t, f.sim.sendWebhooks(t.Context()))
		return len(r.received())
	}
	var passed, delay time.Duration
	for try := 1; f.eventsIn(t, "waiting") > 0; try++ {
		if delay > time.Hour { // half of it is more than the real time that the test takes
			advance(delay / 2)
			if n := look(); n != try-1 {
				t.Errorf("%v after try %d of a delay of %v, %d webhooks have arrived, want %d",
					delay/2, try-1, delay, n, try-1)
			}
			advance(delay - delay/2)
		} else if delay > 0 {
			advance(delay)
		}
		passed += delay
		if n := look(); n != try {
			t.Fatalf("after %v %d webhooks have arrived, want %d", passed, n, try)
		}
		delay = f.sim.retryDelay(try)
	}
	if passed < 60*time.Hour || passed > 72*time.Hour {
		t.Errorf("the last try was after %v, want it in the third day", passed)
	}
	if n := f.eventsIn(t, "given_up"); n != 1 {
		t.Errorf("%d webhooks are given up, want 1", n)
	}
	for _, seconds := range []int{0, -1, 1_000_000} {
		if res, body := post(seconds); res.StatusCode != http.StatusBadRequest {
			t.Errorf("advancing by %d s answered %d %s, want 400", seconds, res.StatusCode, body)
		}
	}
	for _, e := range r.received() {
		if e.ID != r.received()[0].ID {
			t.Errorf("the retries have the events %s and %s, want the same one", r.received()[0].ID, e.ID)
		}
	}
}

// TestAdvanceDuringATry lets time pass while the receiver has not answered yet. The time must count for the next try.
func TestAdvanceDuringATry(t *testing.T) {
	r := newReceiver(t)
	f := newStoppedFixture(t, r.configure, func(c *Config) { c.WebhookRetry = time.Hour })
	r.answer = func(int) int {
		if err := f.sim.AdvanceWebhooks(t.Context(), time.Hour); err != nil {
			t.Error(err)
		}
		return http.StatusServiceUnavailable
	}
	f.paid(t)
	for try := 1; try <= 2; try++ {
		testenv.Must(t, f.sim.sendWebhooks(t.Context()))
		if n := len(r.received()); n != try {
			t.Fatalf("%d webhooks have arrived, want %d", n, try)
		}
	}
}

func TestRetryDelayDoublesUpToHalfADay(t *testing.T) {
	s := &Simulator{cfg: Config{}.withDefaults()}
	for try, want := range map[int]time.Duration{
		1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second,
		16: 32_768 * time.Second, 17: 12 * time.Hour, 21: 12 * time.Hour,
	} {
		if got := s.retryDelay(try); got != want {
			t.Errorf("the delay after try %d is %v, want %v", try, got, want)
		}
	}
}

// TestFailedWebhookWaits checks that the next try waits for the delay.
func TestFailedWebhookWaits(t *testing.T) {
	r := newReceiver(t)
	f := newFixture(t, r.configure, func(c *Config) { c.WebhookRetry = time.Hour })
	r.answer = func(int) int { return http.StatusInternalServerError }
	f.paid(t)
	testenv.Eventually(t, "a webhook that waits for its second try", func() bool {
		return f.count(t, `SELECT count(*) FROM stripesim.events WHERE state = 'waiting' AND tries = 1
			AND due_at BETWEEN now() + interval '50 min' AND now() + interval '1 hour'`) == 1
	})
	if n := len(r.received()); n != 1 {
		t.Errorf("the webhook was sent %d times, want once", n)
	}
}

func TestWebhookIsGivenUp(t *testing.T) {
	r := newReceiver(t)
	f := newFixture(t, r.configure, func(c *Config) { c.WebhookTries = 3 })
	r.answer = func(int) int { return http.StatusServiceUnavailable }
	f.paid(t)
	testenv.Eventually(t, "a webhook that is given up", func() bool { return f.eventsIn(t, "given_up") == 1 })
	if n := len(r.received()); n != 3 {
		t.Errorf("the webhook was sent %d times, want 3", n)
	}
}

func TestReceiverThatDoesNotAnswer(t *testing.T) {
	stop := make(chan struct{})
	arrived := receiver{answer: func(int) int { return 0 }}
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived.add(stripe.Event{})
		<-stop
	}))
	defer server.Close()
	defer close(stop)
	f := newFixture(t, func(c *Config) { c.WebhookURL, c.WebhookTimeout = server.URL, 50*time.Millisecond })
	f.paid(t)
	arrived.await(t, 2)
}

func TestLostWebhook(t *testing.T) {
	r := newReceiver(t)
	f := newFixture(t, r.configure)
	f.set(t, func(k *Knobs) { k.Webhooks = "lost" })
	lost := f.paid(t)
	f.set(t, func(k *Knobs) { k.Webhooks = "normal" })
	f.paid(t)
	if e := r.await(t, 1)[0]; e.Data.Object["id"] == lost.ID {
		t.Error("a lost webhook arrived")
	}
	events := f.events(t)
	if len(events) != 2 || events[1].Data.Object["id"] != lost.ID {
		t.Errorf("the events are %v, want the lost one too", events)
	}
}

func TestDoubledWebhook(t *testing.T) {
	r := newReceiver(t)
	f := newFixture(t, r.configure)
	f.set(t, func(k *Knobs) { k.Webhooks = "doubled" })
	f.paid(t)
	if all := r.await(t, 2); all[0].ID != all[1].ID {
		t.Errorf("the webhooks have the events %s and %s, want one event twice", all[0].ID, all[1].ID)
	}
}

func TestLateWebhook(t *testing.T) {
	r := newReceiver(t)
	f := newFixture(t, r.configure)
	f.set(t, func(k *Knobs) { k.Webhooks = "late" })
	start := time.Now()
	f.paid(t)
	r.await(t, 1)
	if late := time.Since(start); late < 300*time.Millisecond {
		t.Errorf("the webhook came after %v, want at least 300ms", late)
	}
}

func TestReorderedWebhooks(t *testing.T) {
	r := newReceiver(t)
	f := newFixture(t, r.configure, func(c *Config) { c.ReorderDelay = time.Hour })
	f.set(t, func(k *Knobs) { k.Webhooks = "reordered" })
	for range 3 {
		f.paid(t)
	}
	f.set(t, func(k *Knobs) { k.Webhooks = "normal" })
	f.paid(t) // is sent at once
	if first := r.await(t, 1)[0]; first.ID != f.events(t)[0].ID {
		t.Errorf("the first webhook has the event %s, want the newest one", first.ID)
	}
	_, err := f.sim.db.Exec(t.Context(), `
		UPDATE stripesim.events SET due_at = now()
		WHERE seq = (SELECT min(seq) FROM stripesim.events WHERE held AND state = 'waiting')`)
	testenv.Must(t, err)
	var sent, listed []string
	for _, e := range r.await(t, 4) {
		sent = append(sent, e.ID)
	}
	for _, e := range f.events(t) { // the newest first
		listed = append(listed, e.ID)
	}
	if !slices.Equal(sent, listed) {
		t.Errorf("the webhooks arrived as %v, want the newest first: %v", sent, listed)
	}
}

func TestNoWebhooksWithoutReceiver(t *testing.T) {
	f := newFixture(t)
	f.paid(t)
	if n := f.count(t, `SELECT count(*) FROM stripesim.events WHERE state <> 'not_sent'`); n != 0 {
		t.Errorf("%d events are sent, want 0", n)
	}
	list := f.stripe.V1WebhookEndpoints.List(t.Context(), &stripe.WebhookEndpointListParams{})
	for e, err := range list.All(t.Context()) {
		t.Errorf("the list of endpoints has %+v, %v; want none", e, err)
	}
}

// TestWebhooksSurviveARestart makes an event in one simulator, and sends it from the next one.
func TestWebhooksSurviveARestart(t *testing.T) {
	database := testenv.Postgres(t)
	r := newReceiver(t)
	sameDatabase := func(c *Config) { c.DatabaseURL = database }
	first := newStoppedFixture(t, r.configure, sameDatabase)
	s := first.paid(t)
	first.sim.Close()

	second := newStoppedFixture(t, r.configure, sameDatabase)
	run(t, second.sim)
	if e := r.await(t, 1)[0]; e.Data.Object["id"] != s.ID {
		t.Errorf("the event is %+v", e)
	}
}
