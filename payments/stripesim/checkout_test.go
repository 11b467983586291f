package stripesim

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stripe/stripe-go/v85"

	"example.com/shop/internal/testenv"
)

func TestCheckoutPage(t *testing.T) {
	f := newFixture(t)
	params := sessionParams()
	params.LineItems[0].PriceData.ProductData.Name = stripe.String(`<script>alert("1")</script>`)
	s, err := f.stripe.V1CheckoutSessions.Create(t.Context(), params)
	testenv.Must(t, err)
	res, page := f.send(t, http.MethodGet, "/checkout/"+s.ID, "", "")
	if res.StatusCode != http.StatusOK || res.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("the page answered %d %v", res.StatusCode, res.Header)
	}
	want := "default-src 'none'; style-src 'self'; base-uri 'none'; frame-ancestors 'none'; " +
		"form-action 'self' https://shop.example"
	if policy := res.Header.Get("Content-Security-Policy"); policy != want {
		t.Errorf("the policy is %q, want %q", policy, want)
	}
	for _, part := range []string{
		`<html lang="en">`, "<h1>Pay 39.99 EUR</h1>", "<p>&lt;script&gt;alert",
		">Pay</button>", ">Decline</button>", ">Pay; the bank asks first (20 seconds)</button>",
		`<a href="https://shop.example/orders/1">Back to the shop without paying</a>`,
	} {
		if !strings.Contains(page, part) {
			t.Errorf("the page lacks %q:\n%s", part, page)
		}
	}
	if strings.Contains(page, "<script") || strings.Contains(page, "style=") || strings.Contains(page, "http-equiv") {
		t.Errorf("the page has a script, an inline style or a refresh:\n%s", page)
	}
	stylesheets := regexp.MustCompile(`<link rel="stylesheet" href="([^"]+)"`)
	for _, stylesheet := range stylesheets.FindAllStringSubmatch(page, -1) {
		res, _ := f.send(t, http.MethodGet, stylesheet[1], "", "")
		if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/css; charset=utf-8" {
			t.Errorf("%s answered %d %v", stylesheet[1], res.StatusCode, res.Header)
		}
	}
}

func TestCheckoutLeadsBackToTheShop(t *testing.T) {
	f := newFixture(t)
	s := f.create(t)
	res := f.submit(t, s.ID, "pay")
	want, location := "https://shop.example/orders/1?session="+s.ID, res.Header.Get("Location")
	if res.StatusCode != http.StatusSeeOther || location != want {
		t.Errorf("paying answered %d with the location %q, want 303 and %q", res.StatusCode, location, want)
	}
}

// TestCheckoutThatHasEnded opens the page, and submits each form, after the session has ended.
func TestCheckoutThatHasEnded(t *testing.T) {
	f := newFixture(t)
	paid, expired := f.paid(t), f.create(t)
	testenv.Must(t, f.expire(t.Context(), expired.ID))
	const misleading = "You did it. Either the payment is complete, or its time was over."
	for id, want := range map[string]string{
		paid.ID:        "This payment is complete",
		expired.ID:     "This checkout has expired. Nothing was charged.",
		"cs_test_none": "There is no checkout at this address",
	} {
		for _, form := range []string{"", "pay", "decline"} {
			method, path := http.MethodPost, "/checkout/"+id+"/"+form
			if form == "" {
				method, path = http.MethodGet, "/checkout/"+id
			}
			want := want
			if form == "pay" && id == expired.ID {
				want = misleading
			}
			_, page := f.send(t, method, path, "", "")
			if !strings.Contains(page, want) || strings.Contains(page, "<button") ||
				strings.Contains(page, "declined") {
				t.Errorf("%s %s: the page lacks %q, or has buttons:\n%s", method, path, want, page)
			}
		}
		f.submit(t, id, "bank")
	}
	for path, want := range map[string]string{"?bank": misleading, "": "Nothing was charged"} {
		_, page := f.send(t, http.MethodGet, "/checkout/"+expired.ID+path, "", "")
		if !strings.Contains(page, want) || !strings.Contains(page, "https://shop.example/orders/1") {
			t.Errorf("the page %q is %s, want %q and a way back", path, page, want)
		}
	}
	if n := f.count(t, `SELECT count(*) FROM stripesim.payment_intents`); n != 1 {
		t.Errorf("there are %d payments, want 1", n)
	}
	if n := f.count(t, `SELECT count(*) FROM stripesim.sessions WHERE bank_pays_at IS NOT NULL`); n != 0 {
		t.Errorf("the bank asks for %d sessions that have ended, want 0", n)
	}
}

func TestCheckoutWhileTheBankAsks(t *testing.T) {
	f := newStoppedFixture(t) // so that the bank does not confirm
	s := f.create(t)
	f.submit(t, s.ID, "bank")
	_, page := f.send(t, http.MethodGet, "/checkout/"+s.ID+"?bank", "", "")
	if !strings.Contains(page, "Your bank asks you to confirm the payment. This takes 20 seconds.") ||
		!strings.Contains(page, `<meta http-equiv="refresh" content="1">`) || strings.Contains(page, "<button") {
		t.Errorf("the page is %s", page)
	}
}

// TestCheckoutWithoutDatabase closes the database, so that each request to it fails.
func TestCheckoutWithoutDatabase(t *testing.T) {
	f := newStoppedFixture(t)
	s := f.create(t)
	f.sim.Close()
	for _, form := range []string{"pay", "decline", "bank"} {
		res, page := f.send(t, http.MethodPost, "/checkout/"+s.ID+"/"+form, "", "")
		if res.StatusCode != http.StatusInternalServerError ||
			!strings.Contains(page, "The checkout is not available right now") || strings.Contains(page, "pool") {
			t.Errorf("%s answered %d %s", form, res.StatusCode, page)
		}
	}
	_, err := f.stripe.V1CheckoutSessions.Retrieve(t.Context(), s.ID, nil)
	expectError(t, err, http.StatusInternalServerError, stripe.ErrorTypeAPI, "", "")
	for _, path := range []string{"/sim/ledger", "/readyz"} {
		if res, _ := f.send(t, http.MethodGet, path, "", ""); res.StatusCode < 500 {
			t.Errorf("GET %s answered %d, want an error", path, res.StatusCode)
		}
	}
}
