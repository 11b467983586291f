package stripesim

import (
	"encoding/json"
	"errors"
	"net/http"
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
	payments, err := s.ledger(r.Context())
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
	result, err := s.db.ExecContext(r.Context(),
		`UPDATE stripesim.sessions SET amount_total = $2 WHERE id = $1 AND status = 'open'`, r.PathValue("id"), body.AmountCents)
	if err != nil {
		writeFault(w, http.StatusInternalServerError, err)
		return
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		writeFault(w, http.StatusNotFound, errors.New("no open session has this id"))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// getReady reports whether the database answers. `shop health` asks it.
func (s *Simulator) getReady(w http.ResponseWriter, r *http.Request) {
	if err := s.db.PingContext(r.Context()); err != nil {
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
