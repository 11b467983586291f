package main

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/rest"
)

// addRoutes adds the API. An invitation expires after timeout.
func addRoutes(r gin.IRouter, s *store, publisher *delay.Publisher, timeout time.Duration) {
	r.POST("/invitations", rest.Handle(func(c *gin.Context) error {
		email, err := readEmail(c)
		if err != nil {
			return err
		}
		i, err := s.create(c.Request.Context(), email, timeout)
		if err != nil {
			const advice = "A repeated request may create a second invitation, because there are no idempotency keys."
			return rest.OutcomeUnknown(err, advice)
		}
		// The invitation and its outbox row are committed. If Publish fails, the relay publishes the row.
		publisher.Publish(c.Request.Context(), delay.At(i.ID.String(), i.ExpiresAt, i.ServerTime))
		c.JSON(http.StatusCreated, i)
		return nil
	}))
	r.Match(rest.ReadMethods, "/invitations/:id", rest.Handle(func(c *gin.Context) error {
		id, err := rest.PathID(c, "an invitation")
		if err != nil {
			return err
		}
		i, err := s.get(c.Request.Context(), id)
		if err != nil {
			return notFound(err, id)
		}
		c.JSON(http.StatusOK, i)
		return nil
	}))
	r.POST("/invitations/:id/accept", rest.Handle(func(c *gin.Context) error {
		id, err := rest.PathID(c, "an invitation")
		if err != nil {
			return err
		}
		i, err := s.accept(c.Request.Context(), id)
		if err != nil {
			return rest.OutcomeUnknown(notFound(err, id), "Repeat the request: it is idempotent.")
		}
		if i.Status != "accepted" {
			return errExpired.Errorf("The invitation was not accepted by its deadline, %s.",
				i.ExpiresAt.Format(time.RFC3339))
		}
		c.JSON(http.StatusOK, i)
		return nil
	}))
}

// notFound replaces errUnknown by the error for the client. It returns any other error unchanged.
func notFound(err error, id uuid.UUID) error {
	if errors.Is(err, errUnknown) {
		return rest.NotFound.Errorf("There is no invitation %s.", id)
	}
	return err
}

var errExpired = rest.Class{Code: "invitation-expired", Status: http.StatusConflict, Title: "Invitation expired"}

func readEmail(c *gin.Context) (string, error) {
	body, err := rest.ReadObject(c)
	if err != nil {
		return "", err
	}
	errs := body.UnknownFields("", "email")
	email, _ := body["email"].(string)
	if !strings.Contains(email, "@") {
		errs = append(errs, rest.FieldError{Pointer: "/email", Detail: "must be an e-mail address"})
	}
	if len(errs) > 0 {
		return "", rest.InvalidFields(errs...)
	}
	return email, nil
}
