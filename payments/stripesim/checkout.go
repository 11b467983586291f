package stripesim

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed checkout.html
var checkoutHTML string

//go:embed checkout.css
var checkoutCSS []byte

var checkoutPage = template.Must(template.New("checkout").Funcs(template.FuncMap{"money": money}).Parse(checkoutHTML))

// checkoutView is the data of the checkout page.
type checkoutView struct {
	State       string // open, asking (the bank asks the customer), complete, expired, over or unknown
	ID          string
	Item        string
	Amount      int64
	Currency    string
	Declined    bool // the customer's last try was declined
	SuccessURL  string
	CancelURL   string
	BankSeconds int
}

// addCheckout adds the checkout pages. They work whatever the knob API says.
func (s *Simulator) addCheckout(mux *http.ServeMux) {
	mux.HandleFunc("GET /checkout.css", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/css; charset=utf-8")
		_, _ = w.Write(checkoutCSS) // the client may have disconnected
	})
	mux.HandleFunc("GET /checkout/{session}", s.getCheckout)
	mux.HandleFunc("POST /checkout/{session}/pay", s.postPay)
	mux.HandleFunc("POST /checkout/{session}/decline", s.postDecline)
	mux.HandleFunc("POST /checkout/{session}/bank", s.postBank)
}

// getCheckout shows a session. A customer whose bank asked goes back to the shop when the payment is complete.
func (s *Simulator) getCheckout(w http.ResponseWriter, r *http.Request) {
	row, err := findSession(r.Context(), s.db, r.PathValue("session"), nil)
	if err == nil && row.Status == "complete" && r.URL.Query().Has("bank") {
		redirect(w, row.returnURL())
		return
	}
	if r.URL.Query().Has("bank") {
		row = over(row)
	}
	s.showCheckout(w, row, err, http.StatusOK, false)
}

// postPay pays with a card that works.
func (s *Simulator) postPay(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("session")
	// A browser that disconnects does not abort the payment.
	ctx := context.WithoutCancel(r.Context())
	var row session
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) (err error) {
		row, err = s.pay(ctx, tx, id)
		return err
	})
	wake(s.wakeWebhook)
	if err == nil {
		redirect(w, row.returnURL())
		return
	}
	if errors.Is(err, pgx.ErrNoRows) {
		row, err = findSession(r.Context(), s.db, id, nil)
	}
	s.showCheckout(w, over(row), err, http.StatusConflict, false)
}

// over returns the session as the page of a customer who pays shows it. The page of a session that the merchant has
// expired does not know that, and says that all is well, as Stripe's page does: see
// https://github.com/stripe/stripe-node/issues/2462.
func over(row session) session {
	if row.Status == "expired" && row.ExpiredByAPI {
		row.Status = "over"
	}
	return row
}

// postDecline pays with a card that is declined. The session stays open.
func (s *Simulator) postDecline(w http.ResponseWriter, r *http.Request) {
	row, err := findSession(r.Context(), s.db, r.PathValue("session"), nil)
	s.showCheckout(w, row, err, http.StatusPaymentRequired, true)
}

// postBank pays with a card whose bank asks the customer.
func (s *Simulator) postBank(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("session")
	if err := s.askBank(context.WithoutCancel(r.Context()), id); err != nil {
		s.showCheckout(w, session{}, err, http.StatusOK, false)
		return
	}
	redirect(w, "/checkout/"+url.PathEscape(id)+"?bank")
}

// returnURL returns the address at which a customer who has paid comes back to the shop.
func (s session) returnURL() string {
	return strings.ReplaceAll(s.SuccessURL, "{CHECKOUT_SESSION_ID}", s.ID)
}

// showCheckout writes the page of a session, or of the error from reading it.
func (s *Simulator) showCheckout(w http.ResponseWriter, row session, err error, status int, declined bool) {
	view := checkoutView{
		State: row.Status, ID: row.ID, Item: row.Item, Amount: row.AmountTotal, Currency: row.Currency,
		Declined: declined, SuccessURL: row.returnURL(), BankSeconds: int(s.cfg.BankDelay.Seconds()),
	}
	if row.CancelURL != nil {
		view.CancelURL = *row.CancelURL
	}
	if row.Status == "open" && row.BankPaysAt != nil {
		view.State = "asking"
	}
	if err != nil {
		status, view = http.StatusInternalServerError, checkoutView{State: "broken"}
		if e, ok := errors.AsType[*apiError](err); ok {
			status, view.State = e.status, "unknown"
		} else {
			s.log.Error("a checkout page failed", "error", err)
		}
	}
	var page bytes.Buffer
	if err := checkoutPage.Execute(&page, view); err != nil {
		panic(err) // the template fits the view
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("X-Content-Type-Options", "nosniff")
	// Browsers apply form-action to the redirect after a form too, and that leads back to the shop.
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; base-uri 'none'; frame-ancestors 'none'; "+
		"form-action 'self' "+origin(row.SuccessURL))
	w.WriteHeader(status)
	_, _ = w.Write(page.Bytes()) // the client may have disconnected
}

// origin returns the scheme, the host and the port of an address.
func origin(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// redirect answers a request with 303, so that the browser GETs the address.
func redirect(w http.ResponseWriter, to string) {
	w.Header().Set("Location", to)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusSeeOther)
}
