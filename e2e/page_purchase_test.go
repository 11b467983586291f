package e2e

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/testenv/browsertest"
)

// This file tests that the customers' page makes one order of one purchase, whatever happens to its requests.

// TestPageBuysOnce buys with a double click; with a lost response; with a reload before the response; with responses
// that are lost until the page gives up; and while the service is overloaded. Each purchase must place one order.
func TestPageBuysOnce(t *testing.T) {
	shoptest.PageTest(t)
	page := shoptest.ShopTab(t, slowSite(t))
	placed := func(orders int) {
		t.Helper()
		page.Until(fmt.Sprintf("%d orders, and no purchase in progress", orders), func() bool {
			return page.Count(shoptest.AnOrder) == orders && browsertest.Eval[int](page, `sessionStorage.length`) == 0
		})
		page.WaitFor("#products", fmt.Sprintf("9,99%d left", 10-orders))
	}
	// reload loads the page with a script that changes the responses to its purchases.
	reload := func(script string) {
		t.Helper()
		page.Script(script)
		page.Reload()
		page.WaitFor(shoptest.Connection, shoptest.Connected)
		page.WaitFor("#products", "Espresso beans")
	}
	// A browser reports a double click as a click, followed by a click with a count of two.
	page.Do(chromedp.Click(chromedp.CSS(shoptest.BuyBeans), chromedp.NodeEnabled),
		chromedp.DoubleClick(chromedp.CSS(shoptest.BuyBeans)))
	placed(1)

	reload(answersOfOrders(`if (!window.lost) { window.lost = true; throw new TypeError('lost'); }`))
	page.Click(shoptest.BuyBeans)
	placed(2)

	reload(answersOfOrders(`await new Promise(() => {})`)) // it never resolves
	page.Click(shoptest.BuyBeans)
	page.Until("three orders", func() bool { return page.Count(shoptest.AnOrder) == 3 }) // a notification shows it
	// the page repeats the request with the same idempotency key
	reload(answersOfOrders(``))
	placed(3)

	buyWithoutAnswers(t, page, reload)
	buyFromOverloadedShop(t, page, reload)
}

// buyWithoutAnswers loses all responses to a purchase until the page gives up. The order was placed nevertheless. The
// customer cancels it and buys again, which must place a second order.
func buyWithoutAnswers(t *testing.T, page *browsertest.Tab, reload func(script string)) {
	t.Helper()
	before := page.Count(shoptest.AnOrder)
	reload(answersOfOrders(`window.answers = (window.answers ?? 0) + 1; if (!window.found) { throw new TypeError('lost'); }`))
	answers := func(n int) { // each click sends four requests
		t.Helper()
		lost := func() bool { return browsertest.Eval[int](page, `window.answers ?? 0`) == n }
		page.Until(fmt.Sprintf("%d responses lost", n), lost)
		page.WaitFor("#messages", "may or may not be placed")
	}
	setQuantity(page, "Espresso", 3)
	page.Click(shoptest.BuyBeans)
	answers(4)
	page.Click(shoptest.BuyBeans) // as the message advises; the quantity is still three
	answers(8)
	page.WaitFor(shoptest.AnOrder, "3 × Espresso beans")
	if n := page.Count(shoptest.AnOrder) - before; n != 1 {
		t.Errorf("one purchase placed %d orders, want 1", n)
	}
	page.Click(shoptest.CancelOrder)
	page.WaitFor(shoptest.AnOrder, "Cancelled by you")
	browsertest.Eval[bool](page, `window.found = true`)
	page.Click(shoptest.BuyBeans)
	page.Until("a second order", func() bool { return page.Count(shoptest.AnOrder) == before+2 })
	page.WaitFor(shoptest.AnOrder, "left to pay")
}

// setQuantity fills in the quantity of a product.
func setQuantity(page *browsertest.Tab, product string, quantity int) {
	page.WaitFor("#products", product) // the page may be live before it shows the products
	const set = `document.querySelector('#products [aria-label^="Quantity of %s"]').value = %d`
	browsertest.Eval[int](page, fmt.Sprintf(set, product, quantity))
}

// buyFromOverloadedShop rejects a purchase because the service is overloaded, more often than the page repeats a
// request. The page must wait as long as the service says, and offer to repeat the purchase with the same idempotency
// key.
func buyFromOverloadedShop(t *testing.T, page *browsertest.Tab, reload func(script string)) {
	t.Helper()
	before := page.Count(shoptest.AnOrder)
	reload(answersOfOrders(``) + overloaded)
	page.Click(shoptest.BuyBeans)
	page.WaitFor("#messages", "The shop is busy. Your order is sent again in a moment.")
	page.WaitFor("#messages", "The shop is still busy. Try again: your order will not be placed twice.")
	page.CheckLook("sale-overloaded")
	page.Click("#messages button")
	page.Until("the order",
		func() bool { return page.Count(shoptest.AnOrder) == before+1 && page.Text("#messages") == "" })
	type sent struct {
		Key string
		At  float64 // in ms
	}
	requests := browsertest.Eval[[]sent](page, `window.sent`)
	if len(requests) != 5 {
		t.Fatalf("the page sent %d requests, want 5: %v", len(requests), requests)
	}
	for i, r := range requests[1:] {
		if r.Key == "" || r.Key != requests[0].Key {
			t.Errorf("request %d has the idempotency key %q, want that of the first, %q", i+2, r.Key, requests[0].Key)
		}
		if waited := r.At - requests[i].At; i < 3 && waited < 1000 {
			t.Errorf("the page repeated request %d after %v ms, want Retry-After, 1 s", i+1, waited)
		}
	}
}

// answersOfOrders returns a script that runs some code each time a response to placing an order has come.
func answersOfOrders(do string) string {
	return fmt.Sprintf(`{
		const real = window.realFetch ??= window.fetch;
		window.fetch = async (path, options) => {
			const answer = await real(path, options);
			if (options.method === 'POST' && path === '/api/orders') { %s }
			return answer;
		};
	}`, do)
}

// overloaded is a script that answers the first four requests to place an order as an overloaded service does.
const overloaded = `{
	const real = window.fetch;
	window.sent = [];
	window.fetch = async (path, options) => {
		if (options.method !== 'POST' || path !== '/api/orders') {
			return real(path, options);
		}
		window.sent.push({ Key: options.headers['Idempotency-Key'], At: performance.now() });
		if (window.sent.length > 4) {
			return real(path, options);
		}
		const problem = { type: '/problems/overloaded', title: 'Overloaded', status: 503, detail: 'Too many orders.' };
		return new Response(JSON.stringify(problem), { status: 503, headers: { 'Retry-After': '1' } });
	};
}`
