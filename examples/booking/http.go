package main

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/rest"
)

// addRoutes adds the customers' API.
func addRoutes(r gin.IRouter, tokens *rest.Tokens, s *service) {
	r.POST("/api/customers", rest.Parameters(), rest.Handle(tokens.SignUp))
	own := r.Group("/api/bookings", tokens.Authenticate())
	own.POST("", rest.Parameters(), rest.Handle(s.answerCreate))
	own.Match(rest.ReadMethods, "/:id", rest.Parameters(), rest.Handle(s.answerGet))
	own.POST("/:id/confirm", rest.Parameters(), rest.Handle(s.answerConfirm))
}

// respond answers with a body, or returns the error.
func respond(c *gin.Context, status int, body any, err error) error {
	if err == nil {
		c.JSON(status, body)
	}
	return err
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
	c.Header("Location", "/api/bookings/"+b.ID.String())
	status := http.StatusCreated
	if replayed {
		status = http.StatusOK
	}
	type withCode struct {
		*booking
		Code string `json:"code"`
	}
	return respond(c, status, withCode{b, b.Code}, nil)
}

func (s *service) answerGet(c *gin.Context) error {
	id, err := rest.PathID(c, "a booking")
	if err != nil {
		return err
	}
	b, err := s.get(c.Request.Context(), rest.Customer(c), id)
	return respond(c, http.StatusOK, b, err)
}

func (s *service) answerConfirm(c *gin.Context) error {
	id, err := rest.PathID(c, "a booking")
	if err != nil {
		return err
	}
	body, err := rest.ReadObject(c)
	if err != nil {
		return err
	}
	code, errs := body.Text("code", 20)
	if errs = append(body.UnknownFields("", "code"), errs...); len(errs) > 0 {
		return rest.InvalidFields(errs...)
	}
	b, err := s.confirm(c.Request.Context(), rest.Customer(c), id, code)
	return respond(c, http.StatusOK, b, err)
}

const maxSeats = 10 // of a booking

var seatName = regexp.MustCompile(`^[A-Z]\d\d$`)

// readWish reads the request for a booking, and returns one error for all wrong fields.
func readWish(c *gin.Context) (w wish, err error) {
	if w.key, err = rest.IdempotencyKey(c); err != nil {
		return w, err
	}
	body, err := rest.ReadObject(c)
	if err != nil {
		return w, err
	}
	errs := body.UnknownFields("", "screening_id", "seats", "count")
	id, _ := body["screening_id"].(string)
	if w.screening, err = keyset.ParseID(id); err != nil {
		errs = append(errs, rest.FieldError{Pointer: "/screening_id", Detail: "must be the UUID of a screening"})
	}
	seats, _ := body["seats"].([]any)
	for i, seat := range seats {
		name, _ := seat.(string)
		if !seatName.MatchString(name) || slices.Contains(w.seats, name) {
			detail := "must be the name of a seat, such as C05, each once"
			errs = append(errs, rest.FieldError{Pointer: fmt.Sprintf("/seats/%d", i), Detail: detail})
		}
		w.seats = append(w.seats, name)
	}
	_, named := body["seats"]
	_, counted := body["count"]
	w.count, _ = rest.Integer(body["count"])
	if named {
		w.count = int64(len(seats))
	}
	if named == counted || w.count < 1 || w.count > maxSeats {
		detail := fmt.Sprintf("must have either seats, a list of names, or count; at most %d seats", maxSeats)
		errs = append(errs, rest.FieldError{Pointer: "", Detail: detail})
	}
	if len(errs) > 0 {
		return w, rest.InvalidFields(errs...)
	}
	return w, nil
}
