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
)

var tokenKey = []byte("a key for tests, of 32 bytes....")

// TestTokens issues a token, and tries tokens that differ from a valid one in one way.
func TestTokens(t *testing.T) {
	tokens, err := rest.NewTokens(rest.TokenConfig{Key: tokenKey, Issuer: "test", Audience: "customers"})
	if err != nil {
		t.Fatal(err)
	}
	customer := uuid.New()
	issued, err := tokens.Issue(customer)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tokens.Customer(issued); got != customer || err != nil {
		t.Errorf("Customer returns %s, %v for the token of %s", got, err, customer)
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
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	signed := func(change func(*jwt.RegisteredClaims)) string { return sign(jwt.SigningMethodHS256, tokenKey, change) }
	unchanged := func(*jwt.RegisteredClaims) {}

	if _, err := tokens.Customer(signed(unchanged)); err != nil {
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
		if got, err := tokens.Customer(token); err == nil {
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

func TestTokenCookie(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	tokens, err := rest.NewTokens(rest.TokenConfig{
		Key: tokenKey, Issuer: "test", Audience: "customers", Cookie: "test_token", CookiePath: "/api",
	})
	if err != nil {
		t.Fatal(err)
	}
	issued, err := tokens.Issue(uuid.New())
	if err != nil {
		t.Fatal(err)
	}
	r := gin.New()
	r.POST("/sign-up", func(c *gin.Context) { tokens.SetCookie(c, issued) })
	r.GET("/own", tokens.Authenticate(), func(c *gin.Context) { c.Status(http.StatusOK) })
	send := func(t *testing.T, method, path string, header http.Header) *httptest.ResponseRecorder {
		request := httptest.NewRequestWithContext(t.Context(), method, path, nil)
		request.Header = header
		recorder := httptest.NewRecorder()
		r.ServeHTTP(recorder, request)
		return recorder
	}

	for name, test := range map[string]struct {
		header http.Header
		secure bool
	}{
		"plain HTTP":         {http.Header{}, false},
		"behind a TLS proxy": {http.Header{"X-Forwarded-Proto": {"https"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			cookie, err := http.ParseSetCookie(send(t, "POST", "/sign-up", test.header).Header().Get("Set-Cookie"))
			if err != nil {
				t.Fatal(err)
			}
			if cookie.Name != "test_token" || cookie.Value != issued || !cookie.HttpOnly ||
				cookie.SameSite != http.SameSiteStrictMode ||
				cookie.Path != "/api" || cookie.MaxAge != 30*24*3600 || cookie.Secure != test.secure {
				t.Errorf("the cookie is %v, want HttpOnly, SameSite=Strict, Path=/api, 30 days, Secure %v", cookie,
					test.secure)
			}
		})
	}
	for name, test := range map[string]struct {
		authorization []string
		status        int
	}{
		"the cookie alone":               {nil, http.StatusOK},
		"basic authorization of a proxy": {[]string{"Basic eDp5"}, http.StatusOK},
		"a wrong bearer token":           {[]string{"Bearer x"}, http.StatusUnauthorized},
	} {
		header := http.Header{"Cookie": {"test_token=" + issued}, "Authorization": test.authorization}
		if got := send(t, "GET", "/own", header); got.Code != test.status {
			t.Errorf("%s: the answer is %d %s, want %d", name, got.Code, got.Body, test.status)
		}
	}
}

// TestSignUp signs up twice. Each answer has the token of another customer, which is also in the cookie.
func TestSignUp(t *testing.T) {
	tokens, err := rest.NewTokens(rest.TokenConfig{Key: tokenKey, Issuer: "test", Audience: "customers",
		Cookie: "test_token"})
	if err != nil {
		t.Fatal(err)
	}
	r := gin.New()
	r.POST("/customers", rest.Handle(tokens.SignUp))
	customers := map[string]bool{}
	for _, body := range []string{"", "{}", `{"name": "Ada"}`} {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/customers", strings.NewReader(body))
		request.Header.Set("Content-Type", "application/json")
		recorder := httptest.NewRecorder()
		r.ServeHTTP(recorder, request)
		if strings.Contains(body, "name") {
			if recorder.Code != http.StatusUnprocessableEntity {
				t.Errorf("a body with a field is answered with %d %s, want 422", recorder.Code, recorder.Body)
			}
			continue
		}
		var answer struct {
			CustomerID string `json:"customer_id"`
			Token      string
		}
		if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil || recorder.Code != http.StatusCreated {
			t.Fatalf("sign-up is answered with %d %s (%v), want 201", recorder.Code, recorder.Body, err)
		}
		customers[answer.CustomerID] = true
		if id, err := tokens.Customer(answer.Token); err != nil || id.String() != answer.CustomerID {
			t.Errorf("the token is that of the customer %s, %v; want %s", id, err, answer.CustomerID)
		}
		if cookie := recorder.Header().Get("Set-Cookie"); !strings.HasPrefix(cookie, "test_token="+answer.Token+";") {
			t.Errorf("the cookie is %q, want the token", cookie)
		}
	}
	if len(customers) != 2 {
		t.Errorf("the customers are %v, want two", customers)
	}
}
