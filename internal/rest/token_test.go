package rest_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
)

var tokenKey = []byte("a key for tests, of 32 bytes....")

// TestTokens issues a token, and tries tokens that differ from a valid one in one way.
func TestTokens(t *testing.T) {
	tokens, err := rest.NewTokens(rest.TokenConfig{Key: tokenKey, Issuer: "test", Audience: "customers"})
	testenv.Must(t, err)
	customer := uuid.New()
	issued, err := tokens.Issue(customer)
	testenv.Must(t, err)
	if got, left, err := tokens.Customer(issued); got != customer || err != nil || left < tokenLife-time.Minute {
		t.Errorf("Customer returns %s, valid for %v, and %v for the token of %s", got, left, err, customer)
	}

	in := func(d time.Duration) *jwt.NumericDate { return jwt.NewNumericDate(time.Now().Add(d)) }
	good := func() jwt.RegisteredClaims {
		return jwt.RegisteredClaims{Issuer: "test", Audience: jwt.ClaimStrings{"customers"},
			Subject: customer.String(), ExpiresAt: in(time.Hour)}
	}
	sign := func(method jwt.SigningMethod, key any, change func(*jwt.RegisteredClaims)) string {
		claims := good()
		change(&claims)
		token, err := jwt.NewWithClaims(method, claims).SignedString(key)
		testenv.Must(t, err)
		return token
	}
	signed := func(change func(*jwt.RegisteredClaims)) string { return sign(jwt.SigningMethodHS256, tokenKey, change) }
	unchanged := func(*jwt.RegisteredClaims) {}

	if _, _, err := tokens.Customer(signed(unchanged)); err != nil {
		t.Errorf("Customer returns %v for the unchanged token, want no error", err)
	}
	for name, token := range map[string]string{
		"signed with another key": sign(jwt.SigningMethodHS256, []byte("another key for tests, 32 bytes."),
			unchanged),
		"not signed":                      sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, unchanged),
		"signed by another method":        sign(jwt.SigningMethodHS512, tokenKey, unchanged),
		"changed signature":               flip(issued, strings.LastIndex(issued, ".")+1),
		"changed claims":                  flip(issued, strings.Index(issued, ".")+20),
		"expired":                         signed(func(c *jwt.RegisteredClaims) { c.ExpiresAt = in(-time.Second) }),
		"without an expiry":               signed(func(c *jwt.RegisteredClaims) { c.ExpiresAt = nil }),
		"not valid yet":                   signed(func(c *jwt.RegisteredClaims) { c.NotBefore = in(time.Hour) }),
		"of another issuer":               signed(func(c *jwt.RegisteredClaims) { c.Issuer = "another" }),
		"without an issuer":               signed(func(c *jwt.RegisteredClaims) { c.Issuer = "" }),
		"for another audience":            signed(func(c *jwt.RegisteredClaims) { c.Audience = jwt.ClaimStrings{"operators"} }),
		"for no audience":                 signed(func(c *jwt.RegisteredClaims) { c.Audience = nil }),
		"without a customer":              signed(func(c *jwt.RegisteredClaims) { c.Subject = "" }),
		"of a subject that is not a UUID": signed(func(c *jwt.RegisteredClaims) { c.Subject = "admin" }),
		"empty":                           "",
		"not a JWT":                       "test",
	} {
		if got, _, err := tokens.Customer(token); err == nil {
			t.Errorf("token %s: Customer returns %s, want an error", name, got)
		}
	}
}

// flip replaces one character of s.
func flip(s string, at int) string {
	other := "A"
	if s[at] == 'A' {
		other = "B"
	}
	return s[:at] + other + s[at+1:]
}

func TestTokenKeyTooShort(t *testing.T) {
	if _, err := rest.NewTokens(rest.TokenConfig{Key: make([]byte, 31)}); err == nil {
		t.Error("NewTokens accepts a key of 31 bytes, want an error")
	}
}

const tokenLife = 90 * 24 * time.Hour

// site is a router with the customers' API of a deployment. Its requests come from one browser.
type site struct {
	t      *testing.T
	tokens *rest.Tokens
	router *gin.Engine
}

func newSite(t *testing.T, key []byte) site {
	t.Helper()
	gin.SetMode(gin.ReleaseMode)
	tokens, err := rest.NewTokens(rest.TokenConfig{
		Key: key, Issuer: "test", Audience: "customers", Cookie: "test_token", CookiePath: "/api",
	})
	testenv.Must(t, err)
	r := gin.New()
	r.POST("/customers", rest.Handle(tokens.SignUp))
	r.GET("/own", tokens.Authenticate(), func(c *gin.Context) { c.String(http.StatusOK, rest.Customer(c).String()) })
	return site{t, tokens, r}
}

func (s site) send(method, path, body string, header http.Header) *httptest.ResponseRecorder {
	request := httptest.NewRequestWithContext(s.t.Context(), method, path, strings.NewReader(body))
	request.Header = header
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	recorder := httptest.NewRecorder()
	s.router.ServeHTTP(recorder, request)
	return recorder
}

// signUp signs up, and returns the customer and the cookie of the answer, which must have a status.
func (s site) signUp(status int, header http.Header) (customer string, cookie *http.Cookie) {
	s.t.Helper()
	a := s.send(http.MethodPost, "/customers", "", header)
	var answer struct {
		CustomerID string `json:"customer_id"`
		Token      string
	}
	if err := json.Unmarshal(a.Body.Bytes(), &answer); err != nil || a.Code != status {
		s.t.Fatalf("the sign-up is answered with %d %s (%v), want %d", a.Code, a.Body, err, status)
	}
	if id, _, err := s.tokens.Customer(answer.Token); err != nil || id.String() != answer.CustomerID {
		s.t.Errorf("the token is that of the customer %s, %v; want %s", id, err, answer.CustomerID)
	}
	cookie = s.cookie(a)
	if cookie == nil || cookie.Value != answer.Token {
		s.t.Fatalf("the cookie is %v, want the token", cookie)
	}
	return answer.CustomerID, cookie
}

// cookie returns the cookie that an answer sets, or nil.
func (s site) cookie(a *httptest.ResponseRecorder) *http.Cookie {
	s.t.Helper()
	line := a.Header().Get("Set-Cookie")
	if line == "" {
		return nil
	}
	cookie, err := http.ParseSetCookie(line)
	if err != nil {
		s.t.Fatal(err)
	}
	return cookie
}

// token returns a customer's token that expires after a time.
func (s site) token(customer string, left time.Duration) string {
	s.t.Helper()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.RegisteredClaims{
		Issuer: "test", Audience: jwt.ClaimStrings{"customers"}, Subject: customer,
		ExpiresAt: jwt.NewNumericDate(time.Now().Add(left)),
	}).SignedString(tokenKey)
	if err != nil {
		s.t.Fatal(err)
	}
	return token
}

func cookies(all ...*http.Cookie) http.Header {
	r := http.Request{Header: http.Header{}}
	for _, c := range all {
		r.AddCookie(c)
	}
	return r.Header
}

func TestTokenCookie(t *testing.T) {
	s := newSite(t, tokenKey)
	for name, test := range map[string]struct {
		header http.Header
		secure bool
	}{
		"plain HTTP":         {http.Header{}, false},
		"behind a TLS proxy": {http.Header{"X-Forwarded-Proto": {"https"}}, true},
	} {
		_, cookie := s.signUp(http.StatusCreated, test.header)
		if !strings.HasPrefix(cookie.Name, "test_token_") || !cookie.HttpOnly ||
			cookie.SameSite != http.SameSiteStrictMode ||
			cookie.Path != "/api" || cookie.MaxAge != 90*24*3600 || cookie.Secure != test.secure {
			t.Errorf("%s: the cookie is %v, want HttpOnly, SameSite=Strict, Path=/api, 90 days, Secure %v", name,
				cookie, test.secure)
		}
	}
	_, cookie := s.signUp(http.StatusCreated, http.Header{})
	for name, test := range map[string]struct {
		authorization []string
		status        int
	}{
		"the cookie alone":               {nil, http.StatusOK},
		"basic authorization of a proxy": {[]string{"Basic eDp5"}, http.StatusOK},
		"a wrong bearer token":           {[]string{"Bearer x"}, http.StatusUnauthorized},
	} {
		header := cookies(cookie)
		header["Authorization"] = test.authorization
		if got := s.send(http.MethodGet, "/own", "", header); got.Code != test.status {
			t.Errorf("%s: the answer is %d %s, want %d", name, got.Code, got.Body, test.status)
		}
	}
}

// TestSignUp signs up with and without a token. Each request without a valid one gets another customer.
func TestSignUp(t *testing.T) {
	s := newSite(t, tokenKey)
	a := s.send(http.MethodPost, "/customers", `{"name": "Ada"}`, http.Header{})
	if a.Code != http.StatusUnprocessableEntity {
		t.Errorf("a body with a field is answered with %d %s, want 422", a.Code, a.Body)
	}
	first, cookie := s.signUp(http.StatusCreated, http.Header{})
	for name, header := range map[string]http.Header{
		"the cookie":               cookies(cookie),
		"the token":                {"Authorization": {"Bearer " + cookie.Value}},
		"a cookie without a hash":  cookies(&http.Cookie{Name: "test_token", Value: cookie.Value}),
		"a token that soon ends":   {"Authorization": {"Bearer " + s.token(first, time.Hour)}},
		"the cookie and a foreign": cookies(&http.Cookie{Name: "test_token", Value: "x"}, cookie),
	} {
		if again, renewed := s.signUp(http.StatusOK, header); again != first || renewed.Name != cookie.Name {
			t.Errorf("%s: a sign-up gets the customer %s and the cookie %s, want %s and %s",
				name, again, renewed.Name, first, cookie.Name)
		}
	}
	seen := map[string]bool{first: true}
	for name, header := range map[string]http.Header{
		"nothing":            {},
		"an expired cookie":  cookies(&http.Cookie{Name: cookie.Name, Value: s.token(first, -time.Second)}),
		"a foreign cookie":   cookies(&http.Cookie{Name: "test_token", Value: "x"}),
		"a wrong bearer":     {"Authorization": {"Bearer x"}},
		"nothing once again": {},
	} {
		if other, _ := s.signUp(http.StatusCreated, header); seen[other] {
			t.Errorf("%s: a sign-up gets the customer %s of an earlier one", name, other)
		} else {
			seen[other] = true
		}
	}
}

// TestCookieIsRenewed sends cookies of different ages. A cookie of which at most half of the life is left is renewed on
// use, and keeps its customer. So is one of an earlier version, whose name has no hash.
func TestCookieIsRenewed(t *testing.T) {
	s := newSite(t, tokenKey)
	customer, cookie := s.signUp(http.StatusCreated, http.Header{})
	aged := func(left time.Duration) *http.Cookie {
		return &http.Cookie{Name: cookie.Name, Value: s.token(customer, left)}
	}
	for name, test := range map[string]struct {
		header  http.Header
		renewed bool
	}{
		"new":             {cookies(cookie), false},
		"before its half": {cookies(aged(tokenLife/2 + time.Minute)), false},
		"after its half":  {cookies(aged(tokenLife/2 - time.Minute)), true},
		"nearly expired":  {cookies(aged(time.Minute)), true},
		"without a hash":  {cookies(&http.Cookie{Name: "test_token", Value: s.token(customer, 20*24*time.Hour)}), true},
		"a bearer token":  {http.Header{"Authorization": {"Bearer " + s.token(customer, time.Minute)}}, false},
	} {
		a := s.send(http.MethodGet, "/own", "", test.header)
		renewed := s.cookie(a)
		if a.Code != http.StatusOK || a.Body.String() != customer || (renewed != nil) != test.renewed {
			t.Errorf("%s: answered with %d %s and the cookie %v, want the customer %s and a cookie: %v",
				name, a.Code, a.Body, renewed, customer, test.renewed)
		}
		if renewed == nil {
			continue
		}
		got, left, err := s.tokens.Customer(renewed.Value)
		if err != nil || renewed.Name != cookie.Name || got.String() != customer || left < tokenLife-time.Minute {
			t.Errorf("%s: the cookie %s is of %s and valid for %v (%v), want %s, %s and %v",
				name, renewed.Name, got, left, err, cookie.Name, customer, tokenLife)
		}
	}
}

// TestTwoDeploymentsOnOneHost sends the cookies of two deployments to both, as browsers do.
func TestTwoDeploymentsOnOneHost(t *testing.T) {
	one, other := newSite(t, tokenKey), newSite(t, []byte("another key for tests, 32 bytes."))
	customer, cookie := one.signUp(http.StatusCreated, http.Header{})
	otherCustomer, otherCookie := other.signUp(http.StatusCreated, cookies(cookie))
	if cookie.Name == otherCookie.Name {
		t.Fatalf("both cookies have the name %s, so one replaces the other", cookie.Name)
	}
	for s, want := range map[site]string{one: customer, other: otherCustomer} {
		a := s.send(http.MethodGet, "/own", "", cookies(cookie, otherCookie))
		if a.Code != http.StatusOK || a.Body.String() != want {
			t.Errorf("answered with %d %s, want the customer %s", a.Code, a.Body, want)
		}
	}
}
