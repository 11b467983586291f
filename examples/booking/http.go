package main

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/rest"
)

const (
	signUpPath = "/api/customers"
	maxPlaces  = 10 // of a booking
)

// addRoutes adds the customers' API.
func addRoutes(r gin.IRouter, tokens *rest.Tokens, s *service) {
	r.POST(signUpPath, rest.Parameters(), rest.Handle(tokens.SignUp))
	own := r.Group("/api/bookings", tokens.Authenticate(), rest.Parameters())
	own.POST("", rest.Handle(s.answerCreate))
	own.Match(rest.ReadMethods, "/:id", answer(func(c *gin.Context, customer, id uuid.UUID) (*booking, error) {
		return s.get(c.Request.Context(), customer, id)
	}))
	own.POST("/:id/confirm", answer(func(c *gin.Context, customer, id uuid.UUID) (*booking, error) {
		code, err := readCode(c)
		if err != nil {
			return nil, err
		}
		return s.update(c.Request.Context(), customer, id, func(b *booking) error { return b.confirm(code) })
	}))
	own.POST("/:id/release", answer(func(c *gin.Context, customer, id uuid.UUID) (*booking, error) {
		if err := rest.RequireEmptyBody(c); err != nil {
			return nil, err
		}
		return s.update(c.Request.Context(), customer, id, (*booking).release)
	}))
}

func (s *service) answerCreate(c *gin.Context) error {
	w, err := readWish(c)
	if err != nil {
		return err
	}
	b, replayed, err := s.create(c.Request.Context(), rest.Customer(c), w)
	if err != nil {
		return err
	}
	status := http.StatusCreated
	if replayed {
		status = http.StatusOK
	}
	c.Header("Location", "/api/bookings/"+b.ID.String())
	c.JSON(status, b)
	return nil
}

// answer returns a handler that answers with the booking that do returns.
func answer(do func(c *gin.Context, customer, id uuid.UUID) (*booking, error)) gin.HandlerFunc {
	return rest.Handle(func(c *gin.Context) error {
		id, err := rest.PathID(c, "a booking")
		if err != nil {
			return err
		}
		b, err := do(c, rest.Customer(c), id)
		if err == nil {
			c.JSON(http.StatusOK, b)
		}
		return err
	})
}

// readCode reads the request for a confirmation.
func readCode(c *gin.Context) (string, error) {
	body, err := rest.ReadObject(c)
	if err != nil {
		return "", err
	}
	code, errs := body.Text("code", 20)
	if errs = append(body.UnknownFields("", "code"), errs...); len(errs) > 0 {
		return "", rest.InvalidFields(errs...)
	}
	return strings.ToUpper(code), nil // the alphabet of the codes has no small letters
}

// readWish reads the request for a booking, and returns one error for all wrong fields.
func readWish(c *gin.Context) (w wish, err error) {
	if w.key, err = rest.IdempotencyKey(c); err != nil {
		return w, err
	}
	body, err := rest.ReadObject(c)
	if err != nil {
		return w, err
	}
	errs := body.UnknownFields("", "course_id", "places")
	id, _ := body["course_id"].(string)
	if w.course, err = keyset.ParseID(id); err != nil {
		errs = append(errs, rest.FieldError{Pointer: "/course_id", Detail: "must be the UUID of a course"})
	}
	if w.places, _ = rest.Integer(body["places"]); w.places < 1 || w.places > maxPlaces {
		detail := fmt.Sprintf("must be a whole number from 1 to %d", maxPlaces)
		errs = append(errs, rest.FieldError{Pointer: "/places", Detail: detail})
	}
	if len(errs) > 0 {
		return w, rest.InvalidFields(errs...)
	}
	return w, nil
}
