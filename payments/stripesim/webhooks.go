package stripesim

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/stripe/stripe-go/v85/webhook"
	"golang.org/x/sync/errgroup"
)

const (
	webhookBatch       = 32 // the largest number of events that are read and sent at a time
	webhookConcurrency = 8  // the largest number of webhooks that the receiver gets at the same time
)

// event is a row of the table events that is due.
type event struct {
	Seq   int64
	ID    string
	Type  string
	Body  []byte
	Tries int // the number of tries before this one
	Held  bool
	DueAt time.Time
}

// dueEvents returns a batch of the events that are due. If an event that is held is due, all of those are.
func (s *Simulator) dueEvents(ctx context.Context) ([]event, error) {
	return readRows[event](ctx, s.db, `
		SELECT seq, id, type, body, tries, held, due_at FROM stripesim.events
		WHERE state = 'waiting' AND (due_at <= clock_timestamp() OR held AND EXISTS (
			SELECT FROM stripesim.events WHERE state = 'waiting' AND held AND due_at <= clock_timestamp()))
		ORDER BY held, due_at LIMIT $1`, webhookBatch)
}

// sendWebhooks sends the events that are due. It sends those that are held one after the other, the newest first.
func (s *Simulator) sendWebhooks(ctx context.Context) error {
	all, err := s.dueEvents(ctx)
	if err != nil {
		return err
	}
	var senders errgroup.Group
	senders.SetLimit(webhookConcurrency)
	var held []event
	for _, e := range all {
		if e.Held {
			held = append(held, e)
			continue
		}
		senders.Go(func() error { return s.send(ctx, e) })
	}
	slices.SortFunc(held, func(a, b event) int { return cmp.Compare(b.Seq, a.Seq) })
	senders.Go(func() error {
		for _, e := range held {
			if err := s.send(ctx, e); err != nil {
				return err
			}
		}
		return nil
	})
	return senders.Wait()
}

// send sends an event and records the outcome. The error is of the database. If the simulator stops meanwhile, the
// outcome is not known, so that the next process sends the event again.
func (s *Simulator) send(ctx context.Context, e event) error {
	sent := s.post(ctx, e.Body)
	if ctx.Err() != nil {
		return nil
	}
	if sent == nil {
		_, err := s.db.Exec(ctx, `UPDATE stripesim.events SET state = 'delivered', held = false WHERE seq = $1`, e.Seq)
		return err
	}
	tries, state := e.Tries+1, "waiting"
	if tries >= s.cfg.WebhookTries {
		state = "given_up"
	}
	s.log.Info("a webhook was not delivered",
		"event", e.ID, "type", e.Type, "try", tries, "state", state, "error", sent)
	// The time that passed in [Simulator.AdvanceWebhooks] during this try counts for the next one.
	_, err := s.db.Exec(ctx, `
		UPDATE stripesim.events
		SET state = $2, tries = $3, held = false, due_at = clock_timestamp() + $4::interval + (due_at - $5)
		WHERE seq = $1`, e.Seq, state, tries, s.retryDelay(tries), e.DueAt)
	return err
}

// AdvanceWebhooks lets simulated time pass for the events that wait: their next tries come sooner by it. So tests see
// retries that take days. Nothing else changes, and each try is signed with the present time.
func (s *Simulator) AdvanceWebhooks(ctx context.Context, by time.Duration) error {
	_, err := s.db.Exec(ctx, `
		UPDATE stripesim.events SET due_at = due_at - $1::interval WHERE state = 'waiting'`, by)
	wake(s.wakeWebhook)
	return err
}

// retryDelay returns the time from a try to the next one. It doubles with each try, up to maxWebhookRetry.
func (s *Simulator) retryDelay(tries int) time.Duration {
	delay := s.cfg.WebhookRetry
	for range tries - 1 {
		delay = min(2*delay, maxWebhookRetry)
	}
	return delay
}

// post sends the body of an event to the receiver. It returns an error unless the receiver answers with 2xx in time.
func (s *Simulator) post(ctx context.Context, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.cfg.WebhookURL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json; charset=utf-8")
	req.Header.Set("User-Agent", "Stripe/1.0 (+https://stripe.com/docs/webhooks)")
	req.Header.Set("Stripe-Signature", s.sign(time.Now(), body))
	res, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10)) // so that the connection can be used again
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("the receiver answered with status %d, want 2xx", res.StatusCode)
	}
	return nil
}

// sign returns the header Stripe-Signature. It has one signature for each secret, as at Stripe while a merchant
// replaces a secret. See https://docs.stripe.com/webhooks#verify-manually.
func (s *Simulator) sign(now time.Time, body []byte) string {
	header := fmt.Sprintf("t=%d", now.Unix())
	for _, secret := range splitList(s.cfg.WebhookSecret) {
		header += ",v1=" + hex.EncodeToString(webhook.ComputeSignature(now, body, secret))
	}
	return header
}

// newWebhookClient returns a client with its own connections. Like Stripe, it follows no redirects.
func newWebhookClient(timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout:       timeout,
		Transport:     &http.Transport{MaxIdleConnsPerHost: webhookConcurrency, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
