package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/chromedp/chromedp"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

// This file tests what the customers' page shows when a product is sold out, and when the service rejects orders.

const (
	theCourse  = `[data-product="` + shoptest.Course + `"]`
	buyCourse  = `button[aria-label^="Buy Barista"]`
	noteAction = theCourse + ` .missed button`
	openOrders = `#open-orders`
)

// withoutPolling is a script after which the page requests nothing from time to time, if it has another way to learn of
// changes.
var withoutPolling string

// TestPageSoldOut sells the last units of a product to another customer. The page must warn that few are left, and must
// show that the product is sold out and that it is available again, without a reload. A customer whose order was rejected
// must be told.
func TestPageSoldOut(t *testing.T) {
	pageTest(t)
	p := slowSite(t)
	page := open(t, "about:blank")
	page.script(delayedProducts)
	page.script(withoutPolling)
	page.expect("409") // the rejected purchases
	page.do(chromedp.Navigate(p.URL))
	page.waitFor(connection, connected)
	page.waitFor(theCourse+" .stock", "6 left")
	still := page.markDocument()
	other := p.SignUp()
	buy := func(quantity int) (id string) {
		t.Helper()
		body := fmt.Sprintf(`{"items":[{"product_id":%q,"quantity":%d}]}`, shoptest.Course, quantity)
		return other.RowOf(other.Expect(http.StatusCreated, orders.Create(body, ""))).ID
	}

	buy(3)
	page.waitFor(theCourse+" .stock", "Only 3 left")
	page.setQuantity("Barista", 4)
	page.click(buyCourse)
	page.waitFor(theCourse, "Your order of 4 was not placed: only 3 are left.")
	page.waitFor(noteAction, "Order 3")
	page.screenshot("sale-few-left")

	value(page, chromedp.Evaluate[bool](`window.delay = true`)) // the page does not learn what the other customer buys
	last := buy(3)
	page.setQuantity("Barista", 1)
	page.click(buyCourse)
	page.waitFor(theCourse, "Your order was not placed: there is not enough stock.")
	page.waitFor("#announcer", "Barista shoptest.Course, one seat: Your order was not placed")
	value(page, chromedp.Evaluate[bool](`window.delay = false`))
	page.waitFor(theCourse+" .stock", "Sold out")
	page.waitFor(theCourse, "Your order was not placed: sold out. You will see here when it is available again.")
	if page.count(buyCourse+`[aria-disabled="true"]`) != 1 || page.count(noteAction+":not([hidden])") != 0 {
		t.Errorf("a sold out product has a button that orders it: %s", page.text(theCourse))
	}
	page.checkLook(t, "sale-sold-out")

	other.Post(http.StatusOK, "/api/orders/"+last+"/cancel")
	page.waitFor(theCourse, "Barista shoptest.Course, one seat is available again.")
	page.waitFor("#announcer", "Barista shoptest.Course, one seat is available again.")
	page.waitFor(theCourse+" .stock", "Only 3 left")
	page.screenshot("sale-available-again")
	page.click(noteAction)
	page.waitFor(aOrder, "Barista shoptest.Course, one seat")
	page.until("the note is gone", func() bool { return page.count(theCourse+" .missed:not([hidden])") == 0 })
	page.waitFor(theCourse+" .stock", "Only 2 left")
	if !still() {
		t.Error("the page reloaded itself")
	}
}

// delayedProducts is a script that delays the requests for the products while window.delay is true.
const delayedProducts = `{
	const real = window.fetch;
	window.fetch = async (path, options) => {
		while (path === '/api/products' && window.delay) {
			await new Promise((resolve) => setTimeout(resolve, 20));
		}
		return real(path, options);
	};
}`

// TestPageTooManyOpenOrders places more orders than a customer may have open. The page must show the open orders, and
// let the customer order again when one has ended.
func TestPageTooManyOpenOrders(t *testing.T) {
	pageTest(t)
	page := shopTab(t, orders.NewSite(t, testenv.Redis(t), envTimeout+"=10m", faulttest.EnvPrefix+"MAX_OPEN_ORDERS=2").Serve(t))
	page.expect("409") // the rejected purchases
	rejected := func() {
		t.Helper()
		page.click(buyCourse)
		page.waitFor(openOrders, "Too many open orders")
		page.waitFor("#announcer", "Too many open orders")
		page.until("the open orders", func() bool { return page.count(openOrders+" .order") == 2 })
	}
	page.click(buyBeans)
	page.until("one order", func() bool { return page.count(aOrder) == 1 })
	page.click(buyBeans)
	page.until("two orders", func() bool { return page.count(aOrder) == 2 })

	rejected()
	if page.count(aOrder) != 0 || page.count(openOrders+` #order-again[aria-disabled="true"]`) != 1 {
		t.Errorf("the page shows the open orders twice, or offers to order again: %s", page.text("#main"))
	}
	page.checkLook(t, "sale-too-many-open-orders")
	page.click(openOrders + ` [data-action="cancel"]`)
	page.waitFor(openOrders, "One of these orders has ended. You can order again.")
	page.waitFor("#order-again", "Order Barista shoptest.Course, one seat")
	page.click("#order-again")
	page.waitFor("#orders", "Barista shoptest.Course, one seat")
	page.until("three orders in the list", func() bool { return page.count(aOrder) == 3 && page.count(openOrders+":not([hidden])") == 0 })

	rejected()
	page.click("#close-open-orders")
	page.until("three orders in the list", func() bool { return page.count(aOrder) == 3 && page.count(openOrders+":not([hidden])") == 0 })
}

// TestPageOverloaded rejects a purchase because the service is overloaded, more often than the page repeats a request.
// The page must wait as long as the service says, and offer to repeat the purchase with the same idempotency key.
func TestPageOverloaded(t *testing.T) {
	pageTest(t)
	p := slowSite(t)
	page := open(t, "about:blank")
	page.script(overloaded)
	page.do(chromedp.Navigate(p.URL))
	page.waitFor(connection, connected)
	page.waitFor("#products", "Espresso beans")
	page.click(buyBeans)
	page.waitFor("#messages", "The shop is busy. Your order is sent again in a moment.")
	page.waitFor("#messages", "The shop is still busy. Try again: your order will not be placed twice.")
	page.checkLook(t, "sale-overloaded")
	page.click("#messages button")
	page.until("the order", func() bool { return page.count(aOrder) == 1 && page.text("#messages") == "" })
	type sent struct {
		Key string
		At  float64 // in ms
	}
	requests := value(page, chromedp.Evaluate[[]sent](`window.sent`))
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
