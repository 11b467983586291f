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
	"strings"
	"time"

	"github.com/stripe/stripe-go/v85/webhook"
	"golang.org/x/sync/errgroup"
)

const (
	// webhookBatch is the largest number of deliveries that one statement claims. With more, the deliveries of a killed
	// process wait longer for another one. With fewer, more statements are needed.
	webhookBatch = 32
	// webhookConcurrency is the largest number of deliveries that are sent at the same time. More would load the receiver.
	// Fewer would delay the others when the receiver is slow.
	webhookConcurrency = 8
)

// delivery describes the rows of the table deliveries for a new event.
type delivery struct {
	copies    int
	state     string
	delay     time.Duration
	reordered bool
}

// delivery returns the deliveries of an event that happens now, as the knobs say.
func (s *Simulator) delivery(eventType string) delivery {
	d := delivery{copies: 1, state: "waiting"}
	k := s.knobs.get()
	if _, url := s.urls(); url == "" || !slices.Contains(k.events(), "*") && !slices.Contains(k.events(), eventType) {
		d.copies = 0
	}
	switch k.Webhooks {
	case "lost", "disabled":
		d.state = "given_up"
	case "doubled":
		d.copies *= 2
	case "late":
		d.delay = s.cfg.LateDelay
	case "reordered":
		d.delay, d.reordered = s.cfg.ReorderDelay, true
	}
	return d
}

// claimed is a delivery that this process sends. Another process does not claim it before the leaseTime has passed.
type claimed struct {
	id        int64
	tries     int // the number of tries, with this one
	reordered bool
	event     eventObject
}

// claimSQL takes the deliveries that are due. If a reordered one is due, it takes all reordered ones. The column held marks
// them.
const claimSQL = `
	WITH due AS (
		SELECT id, held FROM stripesim.deliveries
		WHERE state = 'waiting' AND (due_at <= clock_timestamp() OR held AND EXISTS (
			SELECT FROM stripesim.deliveries WHERE state = 'waiting' AND held AND due_at <= clock_timestamp()))
		ORDER BY held, due_at LIMIT $1 FOR UPDATE SKIP LOCKED
	), claimed AS (
		UPDATE stripesim.deliveries d SET tries = tries + 1, held = false, due_at = clock_timestamp() + $2 * interval '1 microsecond'
		FROM due WHERE d.id = due.id RETURNING d.id, d.tries, due.held, d.event_id
	)
	SELECT c.id, c.tries, c.held, ` + eventColumns + ` FROM claimed c JOIN stripesim.events e ON e.id = c.event_id`

// claim claims a batch of deliveries.
func (s *Simulator) claim(ctx context.Context) ([]claimed, error) {
	rows, err := s.db.QueryContext(ctx, claimSQL, webhookBatch, s.leaseTime().Microseconds())
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []claimed
	for rows.Next() {
		var c claimed
		c.event, err = scanEvent(prefixed{rows, []any{&c.id, &c.tries, &c.reordered}})
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, rows.Err()
}

// leaseTime returns the time for which other processes leave the deliveries of a batch to this process. In this time it can
// send the batch one after the other, even if the receiver answers each as late as it may.
func (s *Simulator) leaseTime() time.Duration {
	return webhookBatch*s.cfg.WebhookTimeout + 10*time.Second
}

// prefixed scans a row whose first columns have other destinations.
type prefixed struct {
	row   interface{ Scan(...any) error }
	first []any
}

func (p prefixed) Scan(rest ...any) error { return p.row.Scan(append(p.first, rest...)...) }

// sendWebhooks sends the deliveries that are due. It sends the reordered ones one after the other, the newest first.
func (s *Simulator) sendWebhooks(ctx context.Context) error {
	all, err := s.claim(ctx)
	if err != nil {
		return err
	}
	var senders errgroup.Group
	senders.SetLimit(webhookConcurrency)
	var reordered []claimed
	for _, c := range all {
		if c.reordered {
			reordered = append(reordered, c)
			continue
		}
		senders.Go(func() error { return s.send(ctx, c) })
	}
	slices.SortFunc(reordered, func(a, b claimed) int { return cmp.Compare(b.id, a.id) })
	senders.Go(func() error {
		for _, c := range reordered {
			if err := s.send(ctx, c); err != nil {
				return err
			}
		}
		return nil
	})
	return senders.Wait()
}

// send sends a delivery and records the outcome. The error is of the database.
func (s *Simulator) send(ctx context.Context, c claimed) error {
	sent := s.post(ctx, c.event)
	if ctx.Err() != nil {
		// The simulator stops, so the outcome of this try is not known. The next process tries again at once.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, err := s.db.ExecContext(ctx, `UPDATE stripesim.deliveries SET tries = tries - 1, due_at = clock_timestamp() WHERE id = $1`, c.id)
		return err
	}
	if sent == nil {
		_, err := s.db.ExecContext(ctx, `UPDATE stripesim.deliveries SET state = 'delivered', error = NULL WHERE id = $1`, c.id)
		return err
	}
	state := "waiting"
	if c.tries >= s.cfg.WebhookTries {
		state = "given_up"
	}
	s.log.Info("a webhook was not delivered", "event", c.event.ID, "type", c.event.Type, "try", c.tries, "state", state, "error", sent)
	// The delay begins at the claim, which set due_at to the end of the lease. So a time that passes in [Simulator.AdvanceWebhooks]
	// meanwhile is not lost.
	delay := s.retryDelay(c.tries) - s.leaseTime()
	_, err := s.db.ExecContext(ctx, `
		UPDATE stripesim.deliveries SET state = $2, error = $3, due_at = due_at + $4 * interval '1 microsecond' WHERE id = $1`,
		c.id, state, sent.Error(), delay.Microseconds())
	return err
}

// AdvanceWebhooks lets simulated time pass for the webhooks that wait: their next tries come sooner by it. So tests see
// retries that take days. Nothing else changes, and each try is signed with the present time.
func (s *Simulator) AdvanceWebhooks(ctx context.Context, by time.Duration) error {
	_, err := s.db.ExecContext(ctx, `
		UPDATE stripesim.deliveries SET due_at = due_at - $1 * interval '1 microsecond' WHERE state = 'waiting'`, by.Microseconds())
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

// post sends an event to the receiver. It returns an error unless the receiver answers with a status of 2xx in time.
func (s *Simulator) post(ctx context.Context, e eventObject) error {
	_, url := s.urls()
	body := encode(e)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
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

// sign returns the header Stripe-Signature. It has one signature for each secret, as at Stripe while a merchant replaces
// a secret. See https://docs.stripe.com/webhooks#verify-manually.
func (s *Simulator) sign(now time.Time, body []byte) string {
	header := fmt.Sprintf("t=%d", now.Unix())
	for secret := range strings.SplitSeq(s.cfg.WebhookSecret, ",") {
		header += ",v1=" + hex.EncodeToString(webhook.ComputeSignature(now, body, strings.TrimSpace(secret)))
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
