package faulttest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestAnotherUserConfirms runs visits of a ride that another user must accept, with the code that the answer to its
// creation has. A later answer to create has another code, which replaces the first one.
func TestAnotherUserConfirms(t *testing.T) {
	contract := filepath.Join(t.TempDir(), "openapi.yaml")
	testenv.Must(t, os.WriteFile(contract, []byte(`
openapi: 3.0.3
info: {title: rides, version: "1"}
paths:
  /riders: {post: {responses: {"201": {description: token}}}}
  /drivers: {post: {responses: {"201": {description: token}}}}
  /rides: {post: {responses: {"201": {description: ride}}}}
  /rides/1/accept: {post: {responses: {"200": {description: ride}, "409": {description: refused}}}}
`), 0o600))
	mux, codes := http.NewServeMux(), 0
	answer := func(w http.ResponseWriter, status int, body string) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Request-Id", "1")
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
	for _, user := range []string{"rider", "driver"} {
		mux.HandleFunc("POST /"+user+"s", func(w http.ResponseWriter, _ *http.Request) {
			answer(w, 201, fmt.Sprintf(`{"token":%q}`, user))
		})
	}
	mux.HandleFunc("POST /rides", func(w http.ResponseWriter, r *http.Request) {
		codes++
		by := r.Header.Get("Authorization")
		answer(w, 201, fmt.Sprintf(`{"id":"1","status":"pending","code":"%d","by":%q}`, codes, by))
	})
	mux.HandleFunc("POST /rides/1/accept", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer driver" || r.Header.Get("Code") != fmt.Sprint(codes) {
			answer(w, 409, `{"type":"/problems/refused"}`)
			return
		}
		answer(w, 200, `{"id":"1","status":"confirmed"}`)
	})
	server := httptest.NewServer(mux)
	defer server.Close()

	s := &Service{
		Contract: func() (*parttest.Contract, error) { return parttest.LoadPieces(contract) },
		SignUp:   "/riders", OtherSignUp: "/drivers", Collection: "/rides",
		Create: func(body, _ string) Request { return Request{Method: http.MethodPost, Path: "/rides", Body: body} },
		Actions: map[Operation]func(string, []byte) Request{Confirm: func(row string, created []byte) Request {
			r := Post("accept")(row, nil)
			r.Headers, r.Other = []string{"Code: " + Decode[struct{ Code string }](t, Answer{Body: created}).Code}, true
			return r
		}},
		Decode: func(body []byte) (row Row, err error) { return row, json.Unmarshal(body, &row.State) },
	}
	rider := &Client{service: s, T: t, Base: server.URL}
	testenv.Must(t, rider.signUp())
	api := &Member{&Process{URL: server.URL}, "api"}
	d := &Deployment{Site: &Site{Service: s}, processes: []*Member{api}}
	v := &Visit{Load: &Load{d: d}, Customer: rider, unknown: map[int]int{}}
	for _, o := range []Operation{Create, Create, Confirm} {
		if !v.Call(o) || v.wrong != nil {
			t.Fatalf("%s is not answered as the contract says: %q", o, v.wrong)
		}
	}
	if by := Decode[struct{ By string }](t, Answer{Body: v.created}).By; by != "Bearer rider" {
		t.Errorf("the ride is created by %q, want its rider", by)
	}
	if last := v.History[len(v.History)-1]; last.Status != Confirmed {
		t.Errorf("the last call is %v, want one that confirms the ride", last)
	}
}
