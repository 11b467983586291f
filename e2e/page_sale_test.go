package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/chromedp/chromedp"

	"example.com/shop/internal/testenv"
)

// This file tests what the pages show when many customers want the same product, and when the service refuses orders.

const (
	theCourse  = `[data-product="` + course + `"]`
	buyCourse  = `button[aria-label^="Buy Barista"]`
	noteAction = theCourse + ` .missed button`
	openOrders = `#open-orders`
)

// TestPageSoldOut sells the last units of a product to another customer. The page must warn that few are left, and must
// show that the product is sold out and that it is available again, without a reload. A customer whose order was refused
// must be told.
func TestPageSoldOut(t *testing.T) {
	pageTest(t)
	p := slowSite(t)
	page := open(t, "about:blank")
	page.script(heldProducts)
	page.script(onlyNotifications)
	page.expect("409") // the refused purchases
	page.do(chromedp.Navigate(p.url))
	page.waitFor(connection, "Live")
	page.waitFor(theCourse+" .stock", "6 left")
	still := page.markDocument()
	other := p.signUp()
	buy := func(quantity int) (id string) {
		t.Helper()
		body := fmt.Sprintf(`{"items":[{"product_id":%q,"quantity":%d}]}`, course, quantity)
		return other.item(other.expect(http.StatusCreated, domain.create(body, ""))).id
	}

	buy(3)
	page.waitFor(theCourse+" .stock", "Only 3 left")
	page.setQuantity("Barista", 4)
	page.click(buyCourse)
	page.waitFor(theCourse, "Your order of 4 was not placed: only 3 are left.")
	page.waitFor(noteAction, "Order 3")
	page.screenshot("sale-few-left")

	value(page, chromedp.Evaluate[bool](`window.hold = true`)) // the page does not learn what the other customer buys
	last := buy(3)
	page.setQuantity("Barista", 1)
	page.click(buyCourse)
	page.waitFor(theCourse, "Your order was not placed: there is not enough stock.")
	page.waitFor("#announcer", "Barista course, one seat: Your order was not placed")
	value(page, chromedp.Evaluate[bool](`window.hold = false`))
	page.waitFor(theCourse+" .stock", "Sold out")
	page.waitFor(theCourse, "Your order was not placed: sold out. You will see here when it is available again.")
	if page.count(buyCourse+`[aria-disabled="true"]`) != 1 || page.count(noteAction+":not([hidden])") != 0 {
		t.Errorf("a sold out product has a button that orders it: %s", page.text(theCourse))
	}
	page.checkLook(t, "sale-sold-out")

	other.post(http.StatusOK, "/api/orders/"+last+"/cancel")
	page.waitFor(theCourse, "Barista course, one seat is available again.")
	page.waitFor("#announcer", "Barista course, one seat is available again.")
	page.waitFor(theCourse+" .stock", "Only 3 left")
	page.screenshot("sale-available-again")
	page.click(noteAction)
	page.waitFor(aOrder, "Barista course, one seat")
	page.until("the note is gone", func() bool { return page.count(theCourse+" .missed:not([hidden])") == 0 })
	page.waitFor(theCourse+" .stock", "Only 2 left")
	if !still() {
		t.Error("the page reloaded itself")
	}
}

// heldProducts is a script that holds back the requests for the products while window.hold is true.
const heldProducts = `{
	const real = window.fetch;
	window.fetch = async (path, options) => {
		while (path === '/api/products' && window.hold) {
			await new Promise((resolve) => setTimeout(resolve, 20));
		}
		return real(path, options);
	};
}`

// onlyNotifications is a script after which the page requests nothing from time to time, but only when a notification
// tells it to, or when the customer does something.
const onlyNotifications = `{
	window.EventSource = class extends EventSource {
		addEventListener(name, listener) {
			name === 'heartbeat' || super.addEventListener(name, listener);
		}
	};
	const real = window.setTimeout;
	window.setTimeout = (f, milliseconds) => milliseconds > 20_000 ? 0 : real(f, milliseconds); // the connection is silent
}`

// TestPageTooManyOpenOrders places more orders than a customer may have open. The page must show the open orders, and
// let the customer order again when one has ended.
func TestPageTooManyOpenOrders(t *testing.T) {
	pageTest(t)
	page := shopTab(t, newSite(t, testenv.Redis(t), envTimeout+"=10m", envPrefix+"MAX_OPEN_ORDERS=2").serve(t))
	page.expect("409") // the refused purchases
	refused := func() {
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

	refused()
	if page.count(aOrder) != 0 || page.count(openOrders+` #order-again[aria-disabled="true"]`) != 1 {
		t.Errorf("the page shows the open orders twice, or offers to order again: %s", page.text("#main"))
	}
	page.checkLook(t, "sale-too-many-open-orders")
	page.click(openOrders + ` [data-action="cancel"]`)
	page.waitFor(openOrders, "One of these orders has ended. You can order again.")
	page.waitFor("#order-again", "Order Barista course, one seat")
	page.click("#order-again")
	page.waitFor("#orders", "Barista course, one seat")
	page.until("three orders in the list", func() bool { return page.count(aOrder) == 3 && page.count(openOrders+":not([hidden])") == 0 })

	refused()
	page.click("#close-open-orders")
	page.until("three orders in the list", func() bool { return page.count(aOrder) == 3 && page.count(openOrders+":not([hidden])") == 0 })
}

// TestPageOverloaded refuses a purchase because the service is overloaded, more often than the page repeats a request.
// The page must wait as long as the service says, and offer to repeat the purchase with the same idempotency key.
func TestPageOverloaded(t *testing.T) {
	pageTest(t)
	p := slowSite(t)
	page := open(t, "about:blank")
	page.script(overloaded)
	page.do(chromedp.Navigate(p.url))
	page.waitFor(connection, "Live")
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

// TestPageFlashSale starts a flash sale on the operators' page while an order of the product is pending. The page must
// show the sale while it runs, and its result. The customers' page must show that the product is sold out.
func TestPageFlashSale(t *testing.T) {
	pageTest(t)
	p := demo(t, nil, timeoutFlag, "5m")
	c := p.signUp()
	c.expect(http.StatusCreated, domain.create(domain.bodies[2], "")) // two of the product
	page := shopTab(t, p)
	ops := open(t, "about:blank")
	ops.script(runningSale)
	ops.do(chromedp.Navigate(p.url + "/ops#token=" + p.opsToken))
	ops.waitFor("#flash-sale", "Hand grinder: sold 100, refused 1,150 (1,149 out of stock, 1 too many open orders), 1.3 s so far")
	answered := func() float64 {
		return value(ops, chromedp.Evaluate[float64](`document.querySelector("#flash-sale progress").position`))
	}
	if got := answered(); got != 0.25 {
		t.Errorf("the bar shows that %v of the customers have an answer, want a quarter", got)
	}
	if ops.count(startSale+`[aria-disabled="true"]`) != 1 {
		t.Error("the page offers to start a flash sale while one runs")
	}
	ops.screenshot("sale-ops-running")
	value(ops, chromedp.Evaluate[bool](`window.ended = true`))
	ops.until("no flash sale", func() bool { return ops.count("#flash-sale[hidden]") == 1 })
	ops.click(startSale)
	ops.waitFor("#flash-sale", "Hand grinder: sold exactly 100, refused 4,900 (out of stock), took ")
	ops.waitFor("#log", "Flash sale of the Hand grinder: sold exactly 100")
	page.front()
	page.waitFor(`[data-product="`+grinder+`"] .stock`, "Sold out")
	if n := c.available(grinder); n != 0 {
		t.Errorf("after the flash sale %d are available, want 0", n)
	}
	operator := p.operator()
	type result struct {
		FlashSale struct {
			Sold, Failed, Returned int
			Refused                map[string]int
		} `json:"flash_sale"`
	}
	sale := decode[result](t, operator.get("/ops/api/faults")).FlashSale
	if sale.Sold != 100 || sale.Refused["out-of-stock"] != 4900 || sale.Failed != 0 || sale.Returned != 0 {
		t.Errorf("the result is %+v, want 100 sold and 4,900 out of stock", sale)
	}
	stats := decode[struct{ Orders struct{ Pending int } }](t, operator.get("/ops/api/stats"))
	if stats.Orders.Pending != 101 {
		t.Errorf("after the flash sale %d orders are pending, want 101: those of the sale and the one before it", stats.Orders.Pending)
	}
	ops.front()
	ops.until("all invariants hold", func() bool { return ops.count("#invariants li") == ops.count("#invariants .holds") })
	ops.checkLook(t, "sale-ops")
	if answered() != 1 || ops.count(startSale+`[aria-disabled="false"]`) != 1 {
		t.Errorf("the page shows the flash sale as running after its end: %s", ops.text("#flash-sale"))
	}
	operator.post(http.StatusAccepted, "/ops/api/faults/flash-sale") // while the orders of the first one are pending
}

const startSale = `[data-fault="flash-sale"]`

// runningSale is a script that shows the page a flash sale that runs, until window.ended is true. A real sale may end
// before the page has seen it.
const runningSale = `{
	const real = window.fetch;
	window.fetch = async (path, options) => {
		const answer = await real(path, options);
		if (path !== '/ops/api/faults' || window.ended) {
			return answer;
		}
		const sale = {
			running: true, product: 'Hand grinder', units: 100, customers: 5000, sold: 100,
			refused: { 'out-of-stock': 1149, 'too-many-open-orders': 1 }, failed: 0, returned: 0, seconds: 1.3,
		};
		return Response.json({ ...await answer.json(), flash_sale: sale });
	};
}`
