package order_test

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"example.com/shop/internal/closesale"
	"example.com/shop/internal/order"
)

// TestModelWithCloseSale is TestModel with operators who close the sales of products.
func TestModelWithCloseSale(t *testing.T) {
	t.Parallel()
	testModel(t, func(m *model) map[string]func(*rapid.T) {
		sales := closesale.NewService(closesale.NewStore(m.shop.Gorm), m.shop, prometheus.NewRegistry())
		return map[string]func(*rapid.T){"closeSale": func(rt *rapid.T) { closeSale(rt, m, sales) }}
	})
}

func closeSale(rt *rapid.T, m *model, sales *closesale.Service) {
	product := rapid.SampledFrom(m.products).Draw(rt, "product")
	var want int64
	for _, o := range m.orders {
		has := slices.ContainsFunc(o.lines, func(l order.Line) bool { return l.ProductID == product })
		if has && o.canBringForward() {
			o.isNear = true
			want++
		}
	}
	closed, err := sales.CloseSale(m.t.Context(), product)
	if err != nil || closed.Orders != want {
		rt.Fatalf("CloseSale returns %+v, %v; want %d orders", closed, err, want)
	}
}
