package payment

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"example.com/shop/internal/rest"
	"example.com/shop/payments/internal/books"
	"example.com/shop/payments/internal/refund"
)

// maxDecision is the largest length of an actor and of a note, in characters, so that a list of cases can be read.
const maxDecision = 200

// opsRoutes adds the operators' API: the state of all payments, which stats returns, and what operators decide about
// money.
func opsRoutes(
	ops gin.IRouter, stats func(context.Context) (json.RawMessage, error),
	refunds *refund.Service, books *books.Reconciliation,
) {
	state := func(c *gin.Context) error {
		all, err := stats(c.Request.Context())
		if err != nil {
			return err
		}
		c.JSON(http.StatusOK, all)
		return nil
	}
	retry := func(c *gin.Context) error {
		id, err := rest.PathID(c, "a refund")
		if err != nil {
			return err
		}
		if err := refunds.Retry(c.Request.Context(), id); err != nil {
			return err
		}
		c.Status(http.StatusNoContent)
		return nil
	}
	list := func(c *gin.Context) error {
		list, err := books.List(c.Request.Context())
		if err != nil {
			return err
		}
		c.JSON(http.StatusOK, list)
		return nil
	}
	ops.Match(rest.ReadMethods, "/payments", rest.Parameters(), rest.Handle(state))
	ops.POST("/refunds/:id/retry", rest.Parameters(), rest.Handle(rest.RequireEmptyBody), rest.Handle(retry))
	ops.POST("/refunds/:id/settled-outside", rest.Parameters(), decided(pathID("a refund"), refunds.SettleOutside))
	ops.Match(rest.ReadMethods, "/books", rest.Parameters(), rest.Handle(list))
	ops.POST("/books/unclaimed/:intent/keep", rest.Parameters(), decided(pathIntent, books.Keep))
	ops.POST("/books/incidents/:id/close", rest.Parameters(), decided(pathID("an incident"), books.CloseIncident))
}

// decided returns the handler of an operator's decision. id reads from the path what the decision is about.
func decided[ID any](
	id func(*gin.Context) (ID, error), decide func(ctx context.Context, id ID, actor, note string) error,
) gin.HandlerFunc {
	return rest.Handle(func(c *gin.Context) error {
		about, err := id(c)
		if err != nil {
			return err
		}
		actor, note, err := readDecision(c)
		if err != nil {
			return err
		}
		if err := decide(c.Request.Context(), about, actor, note); err != nil {
			return err
		}
		c.Status(http.StatusNoContent)
		return nil
	})
}

// pathID returns a function that reads the id of what, such as "a refund", from the path.
func pathID(what string) func(*gin.Context) (uuid.UUID, error) {
	return func(c *gin.Context) (uuid.UUID, error) { return rest.PathID(c, what) }
}

func pathIntent(c *gin.Context) (string, error) {
	intent := c.Param("intent")
	if !usableID.MatchString(intent) {
		return "", rest.MalformedRequest(rest.FieldError{
			Parameter: "intent", Detail: "must be the id of a payment at the provider",
		})
	}
	return intent, nil
}

// readDecision reads who has decided about money, and why, from the body of a request. The operators' token names
// nobody.
func readDecision(c *gin.Context) (actor, note string, err error) {
	body, err := rest.ReadObject(c)
	if err != nil {
		return "", "", err
	}
	errs := body.UnknownFields("", "actor", "note")
	actor, wrongActor := body.Text("actor", maxDecision)
	note, wrongNote := body.Text("note", maxDecision)
	if errs = append(append(errs, wrongActor...), wrongNote...); len(errs) > 0 {
		return "", "", rest.InvalidFields(errs...)
	}
	rest.AddLogAttr(c, slog.String("actor", actor))
	return actor, note, nil
}
