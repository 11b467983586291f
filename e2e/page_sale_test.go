package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/browsertest"
)

// This file tests what the customers' page shows when a product is sold out, and when the service rejects orders.

const (
	theCourse  = `[data-product="` + shoptest.Course + `"]`
	buyCourse  = `button[aria-label^="Buy Barista"]`
	noteAction = theCourse + ` .missed button`
	openOrders = `#open-orders`
)

// TestPageSoldOut has two customers want the last units of a product. The page must warn that few are left, and must
// show that the product is sold out and that it is available again, without a reload. A customer whose order was
// rejected must be told. No update of the products may move the buttons or the focus.
func TestPageSoldOut(t *testing.T) {
	shoptest.PageTest(t)
	s := orders.NewSite(t, testenv.Redis(t), envTimeout+"=10m")
	p := s.Serve(t)
	page := shoptest.NewTab(t)
	page.Script(delayedProducts)
	page.Script(onlyNotifications)
	page.Expect("409") // the rejected purchases
	page.Navigate(p.URL)
	page.WaitFor(shoptest.Connection, shoptest.Connected)
	page.WaitFor(theCourse+" .stock", "6 left")
	still := page.MarkDocument()

	top := func() float64 {
		return browsertest.Eval[float64](page, `document.querySelector('`+buyCourse+`').getBoundingClientRect().top`)
	}
	before := top()
	setQuantity(page, "Barista", 7)
	page.Click(buyCourse)
	page.WaitFor(theCourse, "Your order of 7 was not placed: only 6 are left.")
	if after := top(); after != before {
		t.Errorf("the note about a rejected purchase moved the pressed button from %v to %v", before, after)
	}
	setQuantity(page, "Barista", 6)
	page.Type(`input[aria-label^="Quantity of Barista"]`, kb.Enter)
	page.WaitFor(theCourse+" .stock", "Sold out")
	if !browsertest.Eval[bool](page, `document.activeElement.ariaLabel.startsWith("Quantity of Barista")`) {
		t.Error("after buying the last ones, the focus is not in the quantity any more")
	}
	page.Click(buyCourse) // it is disabled
	page.Click(shoptest.CancelOrder)
	page.WaitFor(theCourse+" .stock", "6 left")

	sellToAnother(t, p, page)
	if !still() {
		t.Error("the page reloaded itself")
	}

	testenv.Exec(t, faulttest.OpenDatabase(t, s.Database),
		`UPDATE products SET price_cents = 9990, name = 'Espresso beans, roasted today' WHERE name LIKE 'Espresso%'`)
	page.Click(shoptest.BuyBeans)
	page.WaitFor(shoptest.AnOrder, "Pay €99.90")
	page.WaitFor("#products", "€99.90")
	page.WaitFor("#products", "roasted today")
	if n := page.Count(shoptest.AnOrder); n != 3 {
		t.Errorf("the page shows %d orders, want 3: that of the beans, and those of six courses and of one", n)
	}
}

// sellToAnother sells the six units of the course to another customer, in two orders, and cancels the second one.
func sellToAnother(t *testing.T, p *faulttest.Process, page *browsertest.Tab) {
	t.Helper()
	other := p.SignUp()
	buy := func(quantity int) (id string) {
		t.Helper()
		body := fmt.Sprintf(`{"items":[{"product_id":%q,"quantity":%d}]}`, shoptest.Course, quantity)
		return other.RowOf(other.Expect(http.StatusCreated, orders.Create(body, ""))).ID
	}

	buy(3)
	page.WaitFor(theCourse+" .stock", "Only 3 left")
	setQuantity(page, "Barista", 4)
	page.Click(buyCourse)
	page.WaitFor(theCourse, "Your order of 4 was not placed: only 3 are left.")
	page.WaitFor(noteAction, "Order 3")
	page.Screenshot("sale-few-left")

	browsertest.Eval[bool](page, `window.delay = true`) // the page does not learn what the other customer buys
	last := buy(3)
	setQuantity(page, "Barista", 1)
	page.Click(buyCourse)
	page.WaitFor(theCourse, "Your order was not placed: there is not enough stock.")
	page.WaitFor("#announcer", "Barista course, one seat: Your order was not placed")
	browsertest.Eval[bool](page, `window.delay = false`)
	page.WaitFor(theCourse+" .stock", "Sold out")
	page.WaitFor(theCourse, "Your order was not placed: sold out. You will see here when it is available again.")
	if page.Count(buyCourse+`[aria-disabled="true"]`) != 1 || page.Count(noteAction+":not([hidden])") != 0 {
		t.Errorf("a sold out product has a button that orders it: %s", page.Text(theCourse))
	}
	page.CheckLook("sale-sold-out")

	other.Post(http.StatusOK, "/api/orders/"+last+"/cancel")
	page.WaitFor(theCourse, "Barista course, one seat is available again.")
	page.WaitFor("#announcer", "Barista course, one seat is available again.")
	page.WaitFor(theCourse+" .stock", "Only 3 left")
	page.Screenshot("sale-available-again")
	page.Click(noteAction)
	page.WaitFor(shoptest.AnOrder, "Barista course, one seat")
	page.Until("the note is gone", func() bool { return page.Count(theCourse+" .missed:not([hidden])") == 0 })
	page.WaitFor(theCourse+" .stock", "Only 2 left")
}

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
	shoptest.PageTest(t)
	page := shoptest.ShopTab(t, orders.NewSite(t, testenv.Redis(t), envTimeout+"=10m",
		faulttest.EnvPrefix+"MAX_OPEN_ORDERS=2").Serve(t))
	page.Expect("409") // the rejected purchases
	rejected := func() {
		t.Helper()
		page.Click(buyCourse)
		page.WaitFor(openOrders, "Too many open orders")
		page.WaitFor("#announcer", "Too many open orders")
		page.Until("the open orders", func() bool { return page.Count(openOrders+" .order") == 2 })
	}
	page.Click(shoptest.BuyBeans)
	page.Until("one order", func() bool { return page.Count(shoptest.AnOrder) == 1 })
	page.Click(shoptest.BuyBeans)
	page.Until("two orders", func() bool { return page.Count(shoptest.AnOrder) == 2 })

	rejected()
	if page.Count(shoptest.AnOrder) != 0 || page.Count(openOrders+` #order-again[aria-disabled="true"]`) != 1 {
		t.Errorf("the page shows the open orders twice, or offers to order again: %s", page.Text("#main"))
	}
	page.CheckLook("sale-too-many-open-orders")
	page.Click(openOrders + ` [data-action="cancel"]`)
	page.WaitFor(openOrders, "One of these orders is cancelled. You can order again.")
	page.WaitFor("#order-again", "Order Barista course, one seat")
	page.Click("#order-again")
	page.WaitFor("#orders", "Barista course, one seat")
	page.Until("three orders in the list",
		func() bool { return page.Count(shoptest.AnOrder) == 3 && page.Count(openOrders+":not([hidden])") == 0 })

	rejected()
	page.Click("#close-open-orders")
	page.Until("three orders in the list",
		func() bool { return page.Count(shoptest.AnOrder) == 3 && page.Count(openOrders+":not([hidden])") == 0 })
}

// TestPageOwnOrdersHoldTheStock orders more of a product than is left, because the customer's own orders hold more.
// The page must show these orders, and let the customer order again when one of them is cancelled, but not when one is
// paid.
func TestPageOwnOrdersHoldTheStock(t *testing.T) {
	shoptest.PageTest(t)
	page := shoptest.ShopTab(t, orders.NewSite(t, testenv.Redis(t), envTimeout+"=10m").Serve(t))
	page.Expect("409") // the rejected purchase
	page.Click(shoptest.BuyBeans)
	page.Until("an order of beans", func() bool { return page.Count(shoptest.AnOrder) == 1 })
	for n := range 2 {
		setQuantity(page, "Barista", 2)
		page.Click(buyCourse)
		page.Until("another order", func() bool { return page.Count(shoptest.AnOrder) == n+2 })
	}
	page.WaitFor(theCourse+" .stock", "Only 2 left")
	setQuantity(page, "Barista", 3)
	page.Click(buyCourse)
	page.WaitFor(openOrders, "Your open orders hold the stock")
	page.WaitFor(openOrders, "3 wanted, 2 available, 4 in your open orders")
	page.WaitFor("#announcer", "Your open orders hold the stock")
	page.Until("the orders of the course", func() bool {
		return page.Count(openOrders+" .order") == 2 && page.Count(shoptest.AnOrder) == 1
	})
	page.CheckLook("sale-own-orders-hold-the-stock")

	const disabled = openOrders + ` #order-again[aria-disabled="true"]`
	page.Click(openOrders + ` li:last-child [data-action="pay"]`)
	page.WaitFor(openOrders+" li:last-child", "Paid at")
	if page.Count(disabled) != 1 {
		t.Errorf("the page offers to order again, although nothing more is available: %s", page.Text(openOrders))
	}
	page.Click(openOrders + ` li:first-child [data-action="cancel"]`)
	page.WaitFor(openOrders, "One of these orders is cancelled. You can order again.")
	page.WaitFor("#order-again", "Order 3 × Barista course, one seat")
	page.Click("#order-again")
	page.Until("four orders in the list", func() bool {
		return page.Count(shoptest.AnOrder) == 4 && page.Count(openOrders+":not([hidden])") == 0
	})
	page.WaitFor(theCourse+" .stock", "Only 1 left")
}
