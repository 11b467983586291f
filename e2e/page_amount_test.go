package e2e

import (
	"fmt"
	"testing"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

// TestPageAmounts shows products and orders in currencies without decimals, with two and with three. A browser of its
// own accord formats forints without decimals, because their coins are out of use.
func TestPageAmounts(t *testing.T) {
	shoptest.PageTest(t)
	s := orders.NewSite(t, testenv.Redis(t), envTimeout+"=10m")
	db := faulttest.OpenDatabase(t, s.Database)
	testenv.Exec(t, db, `INSERT INTO products (id, name, price_cents, currency, supply, available) VALUES
		(gen_random_uuid(), 'Green tea', 2190, 'JPY', 9, 9), (gen_random_uuid(), 'Dates', 12345, 'KWD', 9, 9),
		(gen_random_uuid(), 'Paprika', 129900, 'HUF', 9, 9), (gen_random_uuid(), 'Grand piano', 1000000000, 'HUF', 9, 9)`)
	page := shoptest.ShopTab(t, s.Serve(t))
	for i, product := range []struct{ name, price string }{
		{"Green tea", "JP¥2,190"}, {"Dates", "KWD\u00a012.345"}, {"Paprika", "HUF\u00a01,299.00"},
		{"Grand piano", "HUF\u00a010,000,000.00"},
	} {
		page.WaitFor("#products", product.price)
		page.Click(fmt.Sprintf(`button[aria-label^="Buy %s"]`, product.name))
		page.Until("the order", func() bool { return page.Count(shoptest.AnOrder) == i+1 })
		page.WaitFor(shoptest.AnOrder, "Pay "+product.price) // the newest order comes first
	}
	page.CheckLook("shop-amounts")
}
