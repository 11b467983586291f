package stripesim

import (
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
	mux.HandleFunc("GET /sim/knobs", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, s.Knobs())
	})
	mux.HandleFunc("PUT /sim/knobs", s.putKnobs)
	mux.HandleFunc("GET /sim/ledger", s.getLedger)
	mux.HandleFunc("POST /sim/sessions/{id}/amount", s.postAmount)
	mux.HandleFunc("GET /sim/calls", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"calls": s.Calls()})
	})
	mux.HandleFunc("POST /sim/payments/{intent}/refunds", s.postRefund)
	mux.HandleFunc("POST /sim/payments/{intent}/dispute", s.postDispute)
	mux.HandleFunc("POST /sim/refunds/{id}/fail", s.postRefundFailure)
	mux.HandleFunc("POST /sim/webhooks/advance", s.postAdvance)
	mux.HandleFunc("GET /readyz", s.getReady)
}

// putKnobs changes the knobs in the body. The other knobs keep their values.
func (s *Simulator) putKnobs(w http.ResponseWriter, r *http.Request) {
	k := s.Knobs()
	err := readBody(w, r, &k)
	if err == nil {
		err = s.SetKnobs(k)
	}
	if err != nil {
		writeFault(w, http.StatusBadRequest, err)
		return
	}
	writeJSON(w, http.StatusOK, k)
}

func (s *Simulator) getLedger(w http.ResponseWriter, r *http.Request) {
	payments, err := s.Ledger(r.Context())
	if err != nil {
		writeFault(w, http.StatusInternalServerError, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"payments": payments})
}

// postAmount changes the amount of an open session, so that the customer pays another amount than the merchant expects.
func (s *Simulator) postAmount(w http.ResponseWriter, r *http.Request) {
	var body struct {
		AmountCents int64 `json:"amount_cents"`
	}
	err := readBody(w, r, &body)
	if err == nil && (body.AmountCents < 1 || body.AmountCents > maxAmount) {
		err = errors.New("amount_cents is wrong, want 1 to 99999999")
	}
	if err != nil {
		writeFault(w, http.StatusBadRequest, err)
		return
	}
	result, err := s.db.Exec(r.Context(),
		`UPDATE stripesim.sessions SET amount_total = $2 WHERE id = $1 AND status = 'open'`, r.PathValue("id"), body.AmountCents)
	if err != nil {
		writeFault(w, http.StatusInternalServerError, err)
		return
	}
	if result.RowsAffected() == 0 {
		writeFault(w, http.StatusNotFound, errors.New("no open session has this id"))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// postRefund refunds a payment, as an operator does at the provider: without metadata. The amount 0 stands for the rest.
func (s *Simulator) postRefund(w http.ResponseWriter, r *http.Request) {
	var body struct {
		AmountCents int64 `json:"amount_cents"`
	}
	if err := readBody(w, r, &body); err != nil || body.AmountCents < 0 {
		writeFault(w, http.StatusBadRequest, errors.Join(err, errors.New("want amount_cents, at least 0")))
		return
	}
	made := refund{Amount: body.AmountCents, Metadata: map[string]string{}}
	s.control(w, r, func(tx pgx.Tx, of owner, intent string) (err error) {
		made.PaymentIntent = intent
		made, err = s.makeRefund(r.Context(), tx, of, made, nil)
		return err
	}, func() any { return made.fields() })
}

// postDispute opens a dispute of a payment, or ends the one that is open. The amount 0 stands for what is not refunded.
func (s *Simulator) postDispute(w http.ResponseWriter, r *http.Request) {
	var body struct {
		State       string `json:"state"` // open, won or lost
		AmountCents int64  `json:"amount_cents"`
	}
	if err := readBody(w, r, &body); err != nil || body.AmountCents < 0 || !slices.Contains([]string{"open", "won", "lost"}, body.State) {
		writeFault(w, http.StatusBadRequest, errors.Join(err, errors.New("want the state open, won or lost, and amount_cents, at least 0")))
		return
	}
	var d dispute
	s.control(w, r, func(tx pgx.Tx, of owner, intent string) (err error) {
		d, err = s.dispute(r.Context(), tx, of, intent, body.State, body.AmountCents)
		return err
	}, func() any { return d.fields() })
}

// postAdvance lets simulated time pass for the webhooks that wait.
func (s *Simulator) postAdvance(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Seconds int64 `json:"seconds"`
	}
	const most = 7 * 24 * 60 * 60
	if err := readBody(w, r, &body); err != nil || body.Seconds < 1 || body.Seconds > most {
		writeFault(w, http.StatusBadRequest, errors.Join(err, fmt.Errorf("want seconds, 1 to %d", most)))
		return
	}
	if err := s.AdvanceWebhooks(r.Context(), time.Duration(body.Seconds)*time.Second); err != nil {
		writeFault(w, http.StatusInternalServerError, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// control changes the payment of a request's path in a transaction, and answers with the object.
func (s *Simulator) control(w http.ResponseWriter, r *http.Request, change func(tx pgx.Tx, of owner, intent string) error, object func() any) {
	intent := r.PathValue("intent")
	err := pgx.BeginFunc(r.Context(), s.db, func(tx pgx.Tx) error {
		of, err := readRow[owner](r.Context(), tx, `
			SELECT s.account, s.livemode FROM stripesim.payment_intents p JOIN stripesim.sessions s ON s.id = p.session_id
			WHERE p.id = $1 FOR UPDATE OF p`, intent)
		if err != nil {
			return err
		}
		return change(tx, of, intent)
	})
	wake(s.wakeTimers)
	wake(s.wakeWebhook)
	writeChanged(w, err, object)
}

// postRefundFailure makes a refund fail, whether or not it has succeeded.
func (s *Simulator) postRefundFailure(w http.ResponseWriter, r *http.Request) {
	var row refund
	err := pgx.BeginFunc(r.Context(), s.db, func(tx pgx.Tx) (err error) {
		row, err = s.endRefund(r.Context(), tx, r.PathValue("id"), "failed", `status NOT IN ('failed', 'canceled')`)
		return err
	})
	wake(s.wakeWebhook)
	writeChanged(w, err, func() any { return row.fields() })
}

// writeChanged answers a request that changes an object. [pgx.ErrNoRows] means that there is no such object.
func writeChanged(w http.ResponseWriter, err error, object func() any) {
	refused, isRefused := errors.AsType[*apiError](err)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		writeFault(w, http.StatusNotFound, errors.New("no payment or refund with this id can be changed so"))
	case isRefused:
		writeFault(w, refused.status, err)
	case err != nil:
		writeFault(w, http.StatusInternalServerError, err)
	default:
		writeJSON(w, http.StatusOK, object())
	}
}

// getReady reports whether the database answers. `shop health` asks it.
func (s *Simulator) getReady(w http.ResponseWriter, r *http.Request) {
	if err := s.db.Ping(r.Context()); err != nil {
		writeFault(w, http.StatusServiceUnavailable, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "ready"})
}

func readBody(w http.ResponseWriter, r *http.Request, into any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 16<<10))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(encode(v), '\n')) // the client may have disconnected
}

func writeFault(w http.ResponseWriter, status int, err error) {
	writeJSON(w, status, map[string]string{"error": err.Error()})
}
