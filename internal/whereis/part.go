package whereis

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/app"
	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
)

//go:embed openapi.yaml
var contract []byte

// Add adds the operators' routes that say where orders are to a process, and a check of `doctor`.
func Add(p *app.Process, orders *order.Service) {
	s := New(p.DB, &p.Kinds, orders)
	p.Add(app.Part{
		Contract: [][]byte{contract},
		Routes: func(_, ops gin.IRouter) {
			ops.Match(rest.ReadMethods, "/orders/:id", rest.Parameters(), rest.Handle(s.answer))
			ops.Match(rest.ReadMethods, "/overdue", rest.Parameters(), rest.Handle(s.answerOverdue))
		},
		Checks: []app.Check{{
			Subject: "locks", Good: "no other session holds up one of the orders that are overdue for the longest time", Run: s.checkLocks,
		}},
	})
}

// validID matches what may be an id, here or elsewhere. PostgreSQL rejects some of the other texts.
var validID = regexp.MustCompile(`^[!-~]{1,255}$`)

// answer is the handler of GET /ops/api/orders/{id}.
func (s *Service) answer(c *gin.Context) error {
	id := c.Param("id")
	if !validID.MatchString(id) {
		return rest.MalformedRequest(rest.FieldError{Parameter: "id", Detail: "must be 1 to 255 printable ASCII characters without spaces"})
	}
	view, err := s.Where(c.Request.Context(), id)
	if err != nil {
		return err
	}
	if view == nil {
		return rest.NotFound.Errorf("%s", noOrder(id))
	}
	c.JSON(http.StatusOK, view)
	return nil
}

func noOrder(id string) string {
	return fmt.Sprintf("No order has the id %s, and nothing with this id refers to an order. Orders that were removed are not found.", id)
}

// answerOverdue is the handler of GET /ops/api/overdue.
func (s *Service) answerOverdue(c *gin.Context) error {
	views, err := s.Overdue(c.Request.Context())
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, gin.H{"items": views})
	return nil
}

// idleInTransaction is a state of sessions in pg_stat_activity.
const idleInTransaction = "idle in transaction"

// ownStatement is longer than the service keeps a lock: its sessions end a statement after five seconds.
const ownStatement = 6 * time.Second

// checkLocks returns an error if a session holds up one of the orders that are overdue for the longest time: a session that is idle in a
// transaction, or whose transaction is older than one of the service can be. The error is about the first such order. It is a check of
// `doctor`.
func (s *Service) checkLocks(ctx context.Context) error {
	views, err := s.Overdue(ctx)
	if err != nil {
		return err
	}
	for _, v := range views {
		b := v.blocker
		if b != nil && b.Since != nil && (v.At.Sub(*b.Since) > ownStatement || b.State != nil && *b.State == idleInTransaction) {
			return fmt.Errorf("order %s: %s", v.OrderID, v.Next)
		}
	}
	return nil
}

// Print writes where an order is, as JSON. It is `order`.
func (s *Service) Print(ctx context.Context, id string, out io.Writer) error {
	view, err := s.Where(ctx, id)
	if err != nil {
		return err
	}
	if view == nil {
		return fmt.Errorf("%s", noOrder(id))
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(view)
}
