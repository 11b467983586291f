package payment_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stripe/stripe-go/v85"

	"example.com/shop/internal/testenv"
	"example.com/shop/payments/internal/provider"
)

// TestAtStripe checks at Stripe itself, in test mode, what the shop relies on:
//
//	STRIPE_TEST_KEY=rk_test_… go test ./internal/payment -run AtStripe -v
//
// The key needs the permissions to write Checkout Sessions, Payment Intents and Refunds, and to read Charges. Nobody
// can pay a session without a browser, so the money comes from payment intents that the test makes.
//
// What needs a browser, by hand, with the shop's service and a test key:
//
//  1. Open a checkout, enter the card 4000 0027 6000 3184, and leave the dialog of 3-D Secure open. Cancel the order. The
//     payment must become closed and the order cancelled. Then complete the dialog: the card must not be charged.
//  2. Open a checkout and pay with 4242 4242 4242 4242 while the worker is stopped. Cancel the order and start the worker.
//     The provider refuses to expire the session, and the order must be paid.
//  3. Open a checkout in two tabs, and pay in both. The second tab must show that the checkout is complete.
func TestAtStripe(t *testing.T) {
	key := os.Getenv("STRIPE_TEST_KEY")
	if key == "" {
		t.Skip("STRIPE_TEST_KEY is not set: this test calls Stripe, with a key of its test mode")
	}
	if !strings.Contains(key, "_test_") {
		t.Fatal("STRIPE_TEST_KEY is not a key of Stripe's test mode")
	}
	p := provider.NewStripe("https://api.stripe.com", key)
	t.Cleanup(p.Close)
	s := &atStripe{Stripe: p, api: stripe.NewClient(key)}
	t.Run("create and replay", s.create)
	t.Run("refused sessions", s.refuse)
	t.Run("expire, and expire again", s.expire)
	t.Run("wrong key", s.wrongKey)
	t.Run("refund in parts", s.refundInParts)
	t.Run("refund fails later", s.refundFails)
	t.Run("refund of a disputed payment", s.refundDisputed)
}

// atStripe holds the shop's client of Stripe, and Stripe's own.
type atStripe struct {
	*provider.Stripe
	api *stripe.Client
}

func newCheckout(p provider.Provider) provider.Checkout {
	attempt := uuid.NewString()
	return provider.Checkout{
		Owner:       provider.Owner{Deployment: "at-stripe", Order: uuid.NewString(), Attempt: attempt},
		AmountCents: 1000, Currency: "eur", Title: "TestAtStripe", ExpiresAt: p.Clock().Add(time.Hour).Truncate(time.Second),
		ReturnURL: "https://shop.example/", Key: attempt,
	}
}

// wantError checks the class and the cause of an error.
func wantError(t *testing.T, err error, class provider.ErrorClass, cause provider.Cause) {
	t.Helper()
	if e, ok := errors.AsType[*provider.Error](err); !ok || e.Class != class || e.Cause != cause {
		t.Errorf("the error is %v, want class %d and cause %q", err, class, cause)
	}
}

func (s *atStripe) create(t *testing.T) {
	c := newCheckout(s)
	made, err := s.Create(t.Context(), c)
	testenv.Must(t, err)
	if made.Owner != c.Owner || made.AmountCents != c.AmountCents || made.Currency != c.Currency || made.Paid ||
		made.Expired || !made.ExpiresAt.Equal(c.ExpiresAt) {
		t.Errorf("the session is %+v, want that of %+v", made, c)
	}
	again, err := s.Create(t.Context(), c)
	testenv.Must(t, err)
	read, err := s.Retrieve(t.Context(), made.ID)
	testenv.Must(t, err)
	if again != made || read != made {
		t.Errorf("the repeated call returns %+v, retrieve %+v; want both times %+v", again, read, made)
	}
	other := c
	other.AmountCents++
	_, err = s.Create(t.Context(), other)
	wantError(t, err, provider.Replayed, "") // the key was used with other parameters
	if ahead := time.Until(s.Clock()).Abs(); ahead > time.Minute {
		t.Errorf("Stripe's clock differs by %v from this machine's; is this machine's right?", ahead)
	}
}

func (s *atStripe) refuse(t *testing.T) {
	small := newCheckout(s)
	small.AmountCents = 1
	_, err := s.Create(t.Context(), small)
	wantError(t, err, provider.Refused, "")
	for _, life := range []time.Duration{20 * time.Minute, 25 * time.Hour} {
		c := newCheckout(s)
		c.ExpiresAt = s.Clock().Add(life)
		_, err := s.Create(t.Context(), c)
		wantError(t, err, provider.Refused, "")
		c.ExpiresAt = s.Clock().Add(time.Hour) // an error of validation is not stored under the key
		_, err = s.Create(t.Context(), c)
		testenv.Must(t, err)
	}
	_, err = s.Retrieve(t.Context(), "cs_test_unknown")
	wantError(t, err, provider.Missing, "")
}

func (s *atStripe) expire(t *testing.T) {
	made, err := s.Create(t.Context(), newCheckout(s))
	testenv.Must(t, err)
	expired, err := s.Expire(t.Context(), made.ID)
	testenv.Must(t, err)
	if !expired.Expired || expired.Paid {
		t.Errorf("expire answers %+v, want an expired session", expired)
	}
	_, err = s.Expire(t.Context(), made.ID)
	wantError(t, err, provider.Refused, "")
	read, err := s.Retrieve(t.Context(), made.ID)
	testenv.Must(t, err)
	if !read.Expired {
		t.Errorf("retrieve answers %+v, want an expired session", read)
	}
}

func (s *atStripe) wrongKey(t *testing.T) {
	p := provider.NewStripe("https://api.stripe.com", "sk_test_wrong")
	defer p.Close()
	_, err := p.Create(t.Context(), newCheckout(p))
	wantError(t, err, provider.Denied, "")
}

// pay makes a payment of 10 euros with a test card, and returns its payment intent. It checks that Stripe copies the
// metadata of the intent to the charge, because the books are matched by it.
func (s *atStripe) pay(t *testing.T, card string) string {
	t.Helper()
	order := uuid.NewString()
	paid, err := s.api.V1PaymentIntents.Create(t.Context(), &stripe.PaymentIntentCreateParams{
		Amount: stripe.Int64(1000), Currency: stripe.String("eur"), PaymentMethod: stripe.String(card), Confirm: stripe.Bool(true),
		PaymentMethodTypes: []*string{stripe.String("card")},
		Metadata:           map[string]string{"deployment": "at-stripe", "order": order},
	})
	testenv.Must(t, err)
	charge, err := s.api.V1Charges.Retrieve(t.Context(), paid.LatestCharge.ID, nil)
	testenv.Must(t, err)
	if charge.Metadata["order"] != order || charge.Metadata["deployment"] != "at-stripe" {
		t.Errorf("the charge has the metadata %v, want that of its payment intent", charge.Metadata)
	}
	return paid.ID
}

// refund returns an amount of a payment.
func (s *atStripe) refund(t *testing.T, intent string, try int, cents int64) (provider.Refund, error) {
	t.Helper()
	return s.Refund(t.Context(), provider.Return{Refund: "refund-of-" + intent, Try: try, Intent: intent, AmountCents: cents, Key: intent + "-" + string(rune('0'+try))})
}

func (s *atStripe) refundInParts(t *testing.T) {
	intent := s.pay(t, "pm_card_visa")
	first, err := s.refund(t, intent, 1, 400)
	testenv.Must(t, err)
	again, err := s.refund(t, intent, 1, 400)
	testenv.Must(t, err)
	if again.ID != first.ID {
		t.Errorf("the repeated call made refund %s, want the first one, %s", again.ID, first.ID)
	}
	second, err := s.refund(t, intent, 2, 600)
	testenv.Must(t, err)
	all, err := s.Refunds(t.Context(), intent)
	testenv.Must(t, err)
	if len(all) != 2 || all[0].ID != second.ID || all[1].ID != first.ID {
		t.Fatalf("the list is %+v, want the second refund and then the first", all)
	}
	if all[0].Refund != "refund-of-"+intent || all[0].Try != 2 || all[0].AmountCents != 600 || all[0].Currency != "eur" {
		t.Errorf("the refund is %+v, want its metadata and its amount", all[0])
	}
	_, err = s.refund(t, intent, 3, 1)
	wantError(t, err, provider.Refused, "")
}

// atStripeWait is how long the test waits for what Stripe does by itself. Stripe promises no time.
const atStripeWait = 2 * time.Minute

func (s *atStripe) refundFails(t *testing.T) {
	intent := s.pay(t, "pm_card_refundFail")
	_, err := s.refund(t, intent, 1, 1000)
	testenv.Must(t, err)
	for began := time.Now(); ; pass(2 * time.Second) {
		all, err := s.Refunds(t.Context(), intent)
		testenv.Must(t, err)
		if len(all) == 1 && all[0].State == provider.Failed {
			if all[0].Reason == "" {
				t.Errorf("the failed refund is %+v, want a reason", all[0])
			}
			return
		}
		if time.Since(began) > atStripeWait {
			t.Fatalf("after %v the refunds are %+v, want one that has failed", atStripeWait, all)
		}
	}
}

func (s *atStripe) refundDisputed(t *testing.T) {
	intent := s.pay(t, "pm_card_createDispute")
	for began := time.Now(); ; pass(2 * time.Second) {
		paid, err := s.api.V1PaymentIntents.Retrieve(t.Context(), intent, &stripe.PaymentIntentRetrieveParams{Params: stripe.Params{Expand: []*string{stripe.String("latest_charge")}}})
		testenv.Must(t, err)
		if paid.LatestCharge.Disputed {
			break
		}
		if time.Since(began) > atStripeWait {
			t.Fatalf("after %v the payment is not disputed", atStripeWait)
		}
	}
	_, err := s.refund(t, intent, 1, 1000)
	wantError(t, err, provider.Refused, "")
}

// TestSessionsAtSimulator runs the cases about sessions at the simulator, so that they stay right without a key.
func TestSessionsAtSimulator(t *testing.T) {
	t.Parallel()
	sim := newShop(t)
	p := provider.NewStripe(sim.simURL, apiKey)
	t.Cleanup(p.Close)
	s := &atStripe{Stripe: p}
	t.Run("create and replay", s.create)
	t.Run("refused sessions", s.refuse)
	t.Run("expire, and expire again", s.expire)
}
