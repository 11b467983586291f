package stripesim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// addControl adds the control API. It needs no authentication: the simulator has no real money, and must not be
// reachable from outside.
func (s *Simulator) addControl(mux *http.ServeMux) {
	mux.Handle("GET /sim/knobs", s.control(func(*http.Request) (any, error) { return s.Knobs(), nil }))
	mux.Handle("PUT /sim/knobs", s.control(s.putKnobs))
	mux.Handle("GET /sim/ledger", s.control(s.getLedger))
	mux.Handle("GET /sim/calls", s.control(func(*http.Request) (any, error) {
		return fields{"calls": s.Calls()}, nil
	}))
	mux.Handle("POST /sim/sessions/{id}/amount", s.control(s.postAmount))
	mux.Handle("POST /sim/payments/{intent}/refunds", s.control(s.postRefund))
	mux.Handle("POST /sim/payments/{intent}/dispute", s.control(s.postDispute))
	mux.Handle("POST /sim/refunds/{id}/fail", s.control(s.postRefundFailure))
	mux.Handle("POST /sim/webhooks/advance", s.control(s.postAdvance))
	mux.Handle("GET /readyz", s.control(s.getReady))
}

// control returns a handler that answers with the value of do as JSON, or with 204 if it is nil. The error
// [pgx.ErrNoRows] is answered with 404, an [apiError] with its status, and any other with 500.
func (s *Simulator) control(do func(r *http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
		answer, err := do(r)
		wake(s.wakeTimers)
		wake(s.wakeWebhook)
		status := http.StatusOK
		refused, isRefused := errors.AsType[*apiError](err)
		switch {
		case err == nil && answer == nil:
			w.WriteHeader(http.StatusNoContent)
			return
		case err == nil:
		case errors.Is(err, pgx.ErrNoRows):
			status, answer = http.StatusNotFound, fields{"error": "no object with this id can be changed so"}
		case isRefused:
			status, answer = refused.status, fields{"error": refused.Message}
		default:
			status, answer = http.StatusInternalServerError, fields{"error": err.Error()}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write(append(encode(answer), '\n')) // the client may have disconnected
	})
}

// readBody decodes the body of a request. The fields that the body does not have keep their values.
func readBody(r *http.Request, into any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return invalidRequest("", "", "the body is wrong: "+err.Error())
	}
	return nil
}

// putKnobs changes the knobs in the body. The other knobs keep their values.
func (s *Simulator) putKnobs(r *http.Request) (any, error) {
	k := s.Knobs()
	if err := readBody(r, &k); err != nil {
		return nil, err
	}
	if err := s.SetKnobs(k); err != nil {
		return nil, invalidRequest("", "", err.Error())
	}
	return k, nil
}

func (s *Simulator) getLedger(r *http.Request) (any, error) {
	payments, err := s.Ledger(r.Context())
	return fields{"payments": payments}, err
}

// postAmount changes the amount of an open session, so that the customer pays another one than the merchant expects.
func (s *Simulator) postAmount(r *http.Request) (any, error) {
	var body struct {
		AmountCents int64 `json:"amount_cents"`
	}
	if err := readBody(r, &body); err != nil {
		return nil, err
	}
	if body.AmountCents < 1 || body.AmountCents > maxAmount {
		return nil, invalidRequest("", "", fmt.Sprintf("want amount_cents, 1 to %d", maxAmount))
	}
	result, err := s.db.Exec(r.Context(), `
		UPDATE stripesim.sessions SET amount_total = $2 WHERE id = $1 AND status = 'open'`,
		r.PathValue("id"), body.AmountCents)
	if err == nil && result.RowsAffected() == 0 {
		err = pgx.ErrNoRows
	}
	return nil, err
}

// postRefund refunds a payment, as an operator does at the provider: without metadata. The amount 0 stands for the
// rest.
func (s *Simulator) postRefund(r *http.Request) (any, error) {
	var body struct {
		AmountCents int64 `json:"amount_cents"`
	}
	if err := readBody(r, &body); err != nil {
		return nil, err
	}
	if body.AmountCents < 0 {
		return nil, invalidRequest("", "", "want amount_cents, at least 0")
	}
	return s.changePayment(r, func(ctx context.Context, tx pgx.Tx, of owner, intent string) (fields, error) {
		made, err := s.makeRefund(ctx, tx, of, refund{
			PaymentIntent: intent, Amount: body.AmountCents, Metadata: map[string]string{},
		}, nil)
		return made.fields(), err
	})
}

// postDispute opens a dispute of a payment, or ends the open one. The amount 0 stands for what is not refunded.
func (s *Simulator) postDispute(r *http.Request) (any, error) {
	var body struct {
		State       string `json:"state"` // open, won or lost
		AmountCents int64  `json:"amount_cents"`
	}
	if err := readBody(r, &body); err != nil {
		return nil, err
	}
	if body.AmountCents < 0 || !slices.Contains([]string{"open", "won", "lost"}, body.State) {
		return nil, invalidRequest("", "", "want the state open, won or lost, and amount_cents, at least 0")
	}
	return s.changePayment(r, func(ctx context.Context, tx pgx.Tx, of owner, intent string) (fields, error) {
		d, err := s.dispute(ctx, tx, of, intent, body.State, body.AmountCents)
		return d.fields(), err
	})
}

// changePayment runs change in a transaction that has locked the payment of a request's path.
func (s *Simulator) changePayment(
	r *http.Request, change func(ctx context.Context, tx pgx.Tx, of owner, intent string) (fields, error),
) (changed fields, err error) {
	ctx, intent := r.Context(), r.PathValue("intent")
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		of, err := readRow[owner](ctx, tx, `
			SELECT s.account, s.livemode
			FROM stripesim.payment_intents p JOIN stripesim.sessions s ON s.id = p.session_id
			WHERE p.id = $1 FOR UPDATE OF p`, intent)
		if err == nil {
			changed, err = change(ctx, tx, of, intent)
		}
		return err
	})
	return changed, err
}

// postRefundFailure makes a refund fail, whether or not it has succeeded.
func (s *Simulator) postRefundFailure(r *http.Request) (any, error) {
	var failed refund
	err := pgx.BeginFunc(r.Context(), s.db, func(tx pgx.Tx) (err error) {
		failed, err = s.endRefund(r.Context(), tx, r.PathValue("id"), "failed", `status NOT IN ('failed', 'canceled')`)
		return err
	})
	return failed.fields(), err
}

// postAdvance lets simulated time pass for the webhooks that wait.
func (s *Simulator) postAdvance(r *http.Request) (any, error) {
	var body struct {
		Seconds int64 `json:"seconds"`
	}
	if err := readBody(r, &body); err != nil {
		return nil, err
	}
	const most = 7 * 24 * 60 * 60
	if body.Seconds < 1 || body.Seconds > most {
		return nil, invalidRequest("", "", fmt.Sprintf("want seconds, 1 to %d", most))
	}
	return nil, s.AdvanceWebhooks(r.Context(), time.Duration(body.Seconds)*time.Second)
}

// getReady reports whether the database answers. `shop health` asks it.
func (s *Simulator) getReady(r *http.Request) (any, error) {
	if err := s.db.Ping(r.Context()); err != nil {
		return nil, &apiError{status: http.StatusServiceUnavailable, Message: err.Error()}
	}
	return fields{"status": "ready"}, nil
}
