package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/chromedp/chromedp"
)

// This file tests what the operators' page shows of payments.

// TestPagePaysAfterTheHold pays an order while the provider does not answer the shop, until the hold has ended. The
// page must show what the shop waits for, the cancellation and the refund, and the operators' page the money.
func TestPagePaysAfterTheHold(t *testing.T) {
	pageTest(t)
	s := newPaidSite(t, envTimeout+"=8s", envPrefix+"PAYMENT_GRACE=6s")
	ops := opsTab(t, s.shop)
	page := shopTab(t, s.shop)
	checkout := s.buy(page)
	s.turn(t, "api", "down")
	page.pay(checkout)
	page.waitFor(aOrder, "The shop is asking the payment provider whether you paid.")
	page.waitFor("#announcer", "The shop is asking the payment provider whether you paid.")
	page.waitFor(aOrder+" .countdown", "0:0")
	if n := page.count(anyAction); n != 0 {
		t.Errorf("an order past its deadline has %d buttons and links, want none: %s", n, page.text(aOrder))
	}
	page.waitFor(aOrder, "Cancelled: not paid in time")
	page.waitFor(aOrder, "The payment provider has not answered yet. If you paid, your payment will be refunded.")
	s.turn(t, "api", "up")
	page.waitFor(aOrder, "Your payment of €21.90 came too late and was refunded at")
	page.waitFor("#announcer", "came too late and was refunded at")
	ops.front()
	ops.waitFor("#money", "returned\n€21.90")
	for _, want := range []string{"captured\n€21.90", "applied\n€0.00", "owed\n€0.00"} {
		ops.waitFor("#money", want)
	}
	ops.waitFor("#attempts", "succeeded\n1")
	ops.waitFor("#refunds", "confirmed\n1")
	ops.until("all invariants hold", func() bool { return ops.count("#invariants .holds") == 7 })
}

// TestPageRefundFails pays a wrong amount, which the provider cannot return. An operator tries the refund again.
func TestPageRefundFails(t *testing.T) {
	pageTest(t)
	s := newPaidSite(t, envTimeout+"=10m")
	ops := opsTab(t, s.shop)
	page := shopTab(t, s.shop)
	checkout := s.buy(page)
	session := value(page, chromedp.Evaluate[string](fmt.Sprintf(`document.querySelector(%q).href.split("/").at(-1)`, openCheckout)))
	s.control(t, http.MethodPost, "/sim/sessions/"+session+"/amount", `{"amount_cents": 2000}`)
	s.turn(t, "refunds", "fail")
	page.pay(checkout)
	page.waitFor(aOrder, "Your payment of €20.00 does not match the order and could not be refunded automatically. The shop's staff is taking care of it.")
	ops.front()
	ops.waitFor("#failed-refunds", "€20.00 for the order")
	s.turn(t, "refunds", "succeed")
	ops.click("#failed-refund-list button")
	ops.until("no failed refund", func() bool { return ops.count("#failed-refunds:not([hidden])") == 0 })
	ops.waitFor("#money", "returned\n€20.00")
	page.front()
	page.waitFor(aOrder, "was refunded at")
}

// TestPageOperatorsRefund has an operator refund a part of a paid order. The refund fails, and the operator settles it
// outside of the provider.
func TestPageOperatorsRefund(t *testing.T) {
	pageTest(t)
	s := newPaidSite(t, envTimeout+"=10m")
	ops := opsTab(t, s.shop)
	page := shopTab(t, s.shop)
	page.pay(s.buy(page))
	page.waitFor(aOrder, "Paid")
	id := value(page, chromedp.Evaluate[string](`document.querySelector("[data-order]").dataset.order`))
	s.turn(t, "refunds", "fail")
	ops.front()
	fill := func(form string, inputs ...string) {
		for i := 0; i < len(inputs); i += 2 {
			ops.do(chromedp.SendKeys(chromedp.CSS(fmt.Sprintf("%s [name=%s]", form, inputs[i])), inputs[i+1]))
		}
		ops.click(form + " button")
	}
	fill("#refund-order", "order", id, "amount", "5.00", "actor", "Ann", "note", "a torn bag")
	ops.waitFor("#refund-order + [role=status]", "of €5.00 is owed")
	ops.waitFor("#failed-refunds", "€5.00 for the order "+id)
	page.front()
	page.waitFor(aOrder, "Of your payment, €5.00 could not be refunded automatically.")
	ops.front()
	ops.click("#failed-refund-list button:nth-of-type(2)")
	fill("#failed-refund-list form", "actor", "Ann", "note", "a transfer")
	ops.until("no failed refund", func() bool { return ops.count("#failed-refunds:not([hidden])") == 0 })
	ops.waitFor("#money", "settled outside\n€5.00")
	page.front()
	page.waitFor(aOrder, "Of your payment, €5.00 was settled in another way at")
}
