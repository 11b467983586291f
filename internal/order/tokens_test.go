package order_test

import (
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"example.com/shop/internal/order"
)

func TestTokens(t *testing.T) {
	tokens, err := order.NewTokens(tokenKey)
	if err != nil {
		t.Fatal(err)
	}
	customer := uuid.New()
	issued, err := tokens.Issue(customer)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tokens.Customer(issued); got != customer || err != nil {
		t.Errorf("of %s: %s, %v", customer, got, err)
	}

	in := func(d time.Duration) *jwt.NumericDate { return jwt.NewNumericDate(time.Now().Add(d)) }
	good := func() jwt.RegisteredClaims {
		return jwt.RegisteredClaims{Issuer: "shop", Audience: jwt.ClaimStrings{"shop-customers"}, Subject: customer.String(), ExpiresAt: in(time.Hour)}
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
	as := func(change func(*jwt.RegisteredClaims)) string { return sign(jwt.SigningMethodHS256, tokenKey, change) }
	same := func(*jwt.RegisteredClaims) {}

	if _, err := tokens.Customer(as(same)); err != nil {
		t.Errorf("what the others are changed from: %v", err)
	}
	for name, token := range map[string]string{
		"signed with another key": sign(jwt.SigningMethodHS256, []byte("another key for tests, 32 bytes."), same),
		"not signed":              sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, same),
		"signed otherwise":        sign(jwt.SigningMethodHS512, tokenKey, same),
		"changed":                 flip(issued, strings.LastIndex(issued, ".")+1),
		"changed in what it says": flip(issued, strings.Index(issued, ".")+20),
		"expired":                 as(func(c *jwt.RegisteredClaims) { c.ExpiresAt = in(-time.Second) }),
		"without an end":          as(func(c *jwt.RegisteredClaims) { c.ExpiresAt = nil }),
		"not valid yet":           as(func(c *jwt.RegisteredClaims) { c.NotBefore = in(time.Hour) }),
		"of another issuer":       as(func(c *jwt.RegisteredClaims) { c.Issuer = "shop2" }),
		"without an issuer":       as(func(c *jwt.RegisteredClaims) { c.Issuer = "" }),
		"for another audience":    as(func(c *jwt.RegisteredClaims) { c.Audience = jwt.ClaimStrings{"shop-ops"} }),
		"for no audience":         as(func(c *jwt.RegisteredClaims) { c.Audience = nil }),
		"of nobody":               as(func(c *jwt.RegisteredClaims) { c.Subject = "" }),
		"of somebody else":        as(func(c *jwt.RegisteredClaims) { c.Subject = "admin" }),
		"empty":                   "",
		"no token":                "shop",
	} {
		if got, err := tokens.Customer(token); err == nil {
			t.Errorf("%s: taken for %s", name, got)
		}
	}
}

// flip changes one character.
func flip(s string, at int) string {
	other := "A"
	if s[at] == 'A' {
		other = "B"
	}
	return s[:at] + other + s[at+1:]
}

func TestTokensNeedALongKey(t *testing.T) {
	if _, err := order.NewTokens(make([]byte, 31)); err == nil {
		t.Error("took a key of 31 bytes")
	}
}
