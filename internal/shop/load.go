package shop

import (
	_ "embed"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
)

//go:embed load_openapi.yaml
var loadContract []byte

const (
	loadOrders  = 1000             // orders that placeOrders places
	loadClients = 8                // placements at the same time
	loadTime    = 50 * time.Second // the time limit for all placements: a busy machine is slow
)

// placeOrders is the handler of POST /ops/api/faults/place-orders. It places loadOrders orders that stay unpaid. Each
// has a customer of its own, because the service limits the unpaid orders of a customer.
func (s *Shop) placeOrders(c *gin.Context) error {
	ctx, cancel := rest.ExtendDeadline(c, loadTime)
	defer cancel()
	var product uuid.UUID
	const mostStock = `SELECT id FROM products ORDER BY available DESC LIMIT 1`
	if err := s.Pool.QueryRowContext(ctx, mostStock).Scan(&product); err != nil {
		return fmt.Errorf("read the product with the most stock: %w", err)
	}
	clients, ctx := errgroup.WithContext(ctx)
	clients.SetLimit(loadClients)
	for range loadOrders {
		customer := keyset.NewID()
		placement := order.Placement{Lines: []order.Line{{ProductID: product, Quantity: 1}}}
		clients.Go(func() error {
			_, _, err := s.Orders.Place(ctx, customer, placement)
			return err
		})
	}
	if err := clients.Wait(); err != nil {
		return err
	}
	c.Status(http.StatusNoContent)
	return nil
}
