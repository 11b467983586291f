package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/browsertest"
	"example.com/shop/payments/paymenttest"
)

// This file tests what the operators' page shows of payments.

// TestPagePaysAfterTheHold pays an order while the provider does not answer the shop, until the hold has ended. The
// page must show what the shop waits for, the cancellation and the refund, and the operators' page the money.
func TestPagePaysAfterTheHold(t *testing.T) {
	shoptest.PageTest(t)
	s := paymenttest.NewSite(t, shop, shop.TimeoutVariable()+"=8s", faulttest.EnvPrefix+"PAYMENT_GRACE=6s")
	ops := shoptest.OpsTab(t, s.Shop)
	page := shoptest.ShopTab(t, s.Shop)
	checkout := buy(s, page)
	s.Turn(t, "api", "down")
	pay(page, checkout)
	page.WaitFor(shoptest.AnOrder, "The shop is asking the payment provider whether you paid.")
	page.WaitFor("#announcer", "The shop is asking the payment provider whether you paid.")
	page.WaitFor(shoptest.AnOrder+" .countdown", "0:0")
	if n := page.Count(anyAction); n != 0 {
		t.Errorf("an order past its deadline has %d buttons and links, want none: %s", n, page.Text(shoptest.AnOrder))
	}
	page.WaitFor(shoptest.AnOrder, "Cancelled: not paid in time")
	page.WaitFor(shoptest.AnOrder, "The payment provider has not answered yet. If you paid, your payment will be refunded.")
	s.Turn(t, "api", "up")
	page.WaitFor(shoptest.AnOrder, "Your payment of €21.90 came too late and was refunded at")
	page.WaitFor("#announcer", "came too late and was refunded at")
	ops.Front()
	ops.WaitFor("#money", "returned\n€21.90")
	for _, want := range []string{"captured\n€21.90", "applied\n€0.00", "owed\n€0.00"} {
		ops.WaitFor("#money", want)
	}
	ops.WaitFor("#attempts", "succeeded\n1")
	ops.WaitFor("#refunds", "confirmed\n1")
	ops.Until("all invariants hold", func() bool { return ops.Count("#invariants .holds") == 7 })
}

// TestPageMovesHeldDeadline has an operator move the deadline of an order whose checkout is open. An earlier deadline is
// rejected, and the operators' page must say why. A later one must reach the customer's page.
func TestPageMovesHeldDeadline(t *testing.T) {
	shoptest.PageTest(t)
	s := paymenttest.NewSite(t, shop, shop.TimeoutVariable()+"=30m")
	page := shoptest.ShopTab(t, s.Shop)
	buy(s, page)
	page.WaitFor(shoptest.AnOrder, "Paying: held until")
	id := browsertest.Eval[string](page, `document.querySelector("[data-order]").dataset.order`)
	ops := shoptest.OpsTab(t, s.Shop)
	ops.Type("#whereis-id", id+kb.Enter)
	ops.WaitFor("#whereis-next", "It is held while a second party may confirm it")
	ops.Expect("409")
	ops.Type("#move-deadline [name=reason]", "a slow bank")
	ops.Type("#move-deadline [name=minutes]", "1"+kb.Enter)
	ops.WaitFor("#messages", "can only be moved to a later time")
	ops.Type("#move-deadline [name=minutes]", "20"+kb.Enter) // after the 1
	ops.WaitFor("#move-deadline [role=status]", "The deadline of the order "+id+" is ")
	page.Front()
	page.Until("a countdown from two hours", func() bool {
		return strings.HasPrefix(page.Text(shoptest.AnOrder+" .countdown"), "1:5")
	})
}

// payWrong pays another amount than the total of the newest order, so that the shop refunds it. The shop's page is in front
// afterwards.
func payWrong(t *testing.T, s *paymenttest.Site, page *browsertest.Tab, cents int64) {
	t.Helper()
	checkout := buy(s, page)
	session := browsertest.Eval[string](page, fmt.Sprintf(`document.querySelector(%q).href.split("/").at(-1)`, checkoutLink))
	s.Control(t, http.MethodPost, "/sim/sessions/"+session+"/amount", fmt.Sprintf(`{"amount_cents": %d}`, cents))
	pay(page, checkout)
}

// TestPageRefunds has refunds fail. A customer pays a wrong amount, which the provider cannot return, and an operator
// tries the refund again. Another customer does, too, and an operator settles that refund outside of the provider.
func TestPageRefunds(t *testing.T) {
	shoptest.PageTest(t)
	s := paymenttest.NewSite(t, shop, shop.TimeoutVariable()+"=10m")
	ops := shoptest.OpsTab(t, s.Shop)
	page := shoptest.ShopTab(t, s.Shop)
	s.Turn(t, "refunds", "fail")
	payWrong(t, s, page, 2000)
	page.WaitFor(shoptest.AnOrder, "Your payment of €20.00 does not match the order and could not be refunded automatically. The shop's staff is taking care of it.")
	ops.Front()
	ops.WaitFor("#failed-refunds", "€20.00 for the order")
	s.Turn(t, "refunds", "succeed")
	ops.Click("#failed-refund-list button")
	noFailedRefund := func() bool { return ops.Count("#failed-refunds:not([hidden])") == 0 }
	ops.Until("no failed refund", noFailedRefund)
	ops.WaitFor("#money", "returned\n€20.00")
	page.Front()
	page.WaitFor(shoptest.AnOrder, "was refunded at")

	page = shoptest.ShopTab(t, s.Shop)
	s.Turn(t, "refunds", "fail")
	payWrong(t, s, page, 500)
	page.WaitFor(shoptest.AnOrder, "Your payment of €5.00 does not match the order and could not be refunded automatically.")
	id := browsertest.Eval[string](page, `document.querySelector("[data-order]").dataset.order`)
	ops.Front()
	ops.WaitFor("#failed-refunds", "€5.00 for the order "+id)
	ops.Click("#failed-refund-list button:nth-of-type(2)")
	fill(ops, "#failed-refund-list form", "actor", "Ann", "note", "a transfer")
	ops.Until("no failed refund", noFailedRefund)
	ops.WaitFor("#money", "settled outside\n€5.00")
	page.Front()
	page.WaitFor(shoptest.AnOrder, "Your payment of €5.00 does not match the order and was settled in another way at")
}

// fill types texts into the inputs of a form, and sends it. The inputs are names, each with its text.
func fill(page *browsertest.Tab, form string, inputs ...string) {
	for i := 0; i < len(inputs); i += 2 {
		page.Type(fmt.Sprintf("%s [name=%s]", form, inputs[i]), inputs[i+1])
	}
	page.Click(form + " button")
}

// TestPageAmountsOfPayments pays orders in currencies without decimals and with three, and has payments of other amounts
// refunded. The pages must show the amounts with the decimals of the currency.
func TestPageAmountsOfPayments(t *testing.T) {
	shoptest.PageTest(t)
	for _, test := range []struct {
		currency     string
		cents        int64
		price, there string // on the pages of the shop and of the provider
		part         int64
		shown        string // of the refund
	}{
		{"JPY", 2190, "JP¥2,190", "Pay 2190 JPY", 500, "JP¥500"},
		{"KWD", 12340, "KWD\u00a012.340", "Pay 12.340 KWD", 1230, "KWD\u00a01.230"},
	} {
		t.Run(test.currency, func(t *testing.T) {
			s := paymenttest.NewSite(t, shop, shop.TimeoutVariable()+"=10m")
			testenv.Exec(t, faulttest.OpenDatabase(t, s.Database),
				`UPDATE products SET currency = $1, price_cents = $2 WHERE name LIKE 'Espresso%'`, test.currency, test.cents)
			ops, page := shoptest.OpsTab(t, s.Shop), shoptest.ShopTab(t, s.Shop)
			page.WaitFor("#products", test.price)
			checkout := buy(s, page)
			checkout.WaitFor("h1", test.there)
			pay(page, checkout)
			page.WaitFor(shoptest.AnOrder, "Paid at")
			ops.Front()
			ops.WaitFor("#money", "applied\n"+test.price)
			page = shoptest.ShopTab(t, s.Shop)
			payWrong(t, s, page, test.part)
			page.WaitFor(shoptest.AnOrder, "Your payment of "+test.shown+" does not match the order and was refunded at")
			ops.Front()
			ops.WaitFor("#money", "returned\n"+test.shown)
		})
	}
}

// TestPageBooks shows the last report of the provider's books. An operator closes the incident of unclaimed money, and
// keeps it.
func TestPageBooks(t *testing.T) {
	shoptest.PageTest(t)
	s := paymenttest.NewSite(t, shop, shop.TimeoutVariable()+"=10m")
	ops := shoptest.OpsTab(t, s.Shop)
	ops.WaitFor("#books", "Report 1, made at")
	ops.WaitFor("#books", "The provider and the shop agree.")
	db := faulttest.OpenDatabase(t, s.Database)
	testenv.Exec(t, db, `WITH i AS (INSERT INTO payment_incidents (id, kind, detail) VALUES (gen_random_uuid(), 'unclaimed', 'a test')),
		m AS (INSERT INTO provider_movements (id, kind, at, amount_cents, currency, source_id, intent) VALUES ('txn_1', 'captured', now(), 1200, 'eur', 'ch_1', 'pi_lost'))
		INSERT INTO unclaimed_payments (intent) VALUES ('pi_lost')`)
	testenv.Exec(t, db, `UPDATE payment_reports SET report = report || '{"balanced": false, "currencies": [{"currency": "eur",
		"there": {"captured_cents": 2400, "refunded_cents": 200, "disputed_cents": 0},
		"here": {"captured_cents": 1000, "refunded_cents": 0, "disputed_cents": 100},
		"under_way_cents": 0, "unclaimed_cents": 1200, "kept_cents": 0, "difference_cents": 100,
		"difference_count": 1, "differences": [{"attempt_id": "a1", "what": "captured", "there_cents": 1100, "here_cents": 1000}]}]}'`)
	for _, want := range []string{"The provider and the shop differ", "at the provider\n€22.00", "in the shop\n€9.00", "unclaimed\n€12.00"} {
		ops.WaitFor("#books", want)
	}
	ops.WaitFor("#books-decisions", "captured: €11.00 at the provider, €10.00 in the shop")
	ops.WaitFor("#books-decisions", "€12.00 for the order that is not known")
	decide := func(list string) {
		ops.Type(list+" [name=actor]", "Ann")
		ops.Type(list+" [name=note]", "shipped")
		ops.Click(list + " button")
		ops.Until("the decision is stored", func() bool { return ops.Count(list+" li") == 0 })
	}
	decide("#books-incidents")
	decide("#books-unclaimed")
	if kept := testenv.Query[string](t, db, `SELECT u.actor || i.note FROM unclaimed_payments u, payment_incidents i WHERE u.kept_at IS NOT NULL AND i.closed_at IS NOT NULL`); kept != "Annshipped" {
		t.Errorf("the decisions are %q", kept)
	}
}
