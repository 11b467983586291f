package rest

import (
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"example.com/shop/internal/keyset"
)

const (
	tokenLife   = 30 * 24 * time.Hour
	minKeyBytes = 32 // the length of the hash: RFC 7518, section 3.2
)

// TokenConfig configures [Tokens].
type TokenConfig struct {
	Key        []byte // secret, at least 32 bytes
	Issuer     string
	Audience   string
	Cookie     string // the name of the cookie that carries a browser's token
	CookiePath string // the path below which browsers send the cookie
	SignUp     string // how a client gets a token, in the imperative, for the detail of a problem
}

// Tokens issues and verifies the signed tokens (JWT, HS256) that identify customers.
type Tokens struct {
	cfg    TokenConfig
	parser *jwt.Parser
}

// NewTokens returns tokens with a configuration, or an error if the key is shorter than 32 bytes.
func NewTokens(cfg TokenConfig) (*Tokens, error) {
	if len(cfg.Key) < minKeyBytes {
		return nil, fmt.Errorf("token key: %d bytes, want at least %d", len(cfg.Key), minKeyBytes)
	}
	return &Tokens{cfg: cfg, parser: jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()}),
		jwt.WithIssuer(cfg.Issuer),
		jwt.WithAudience(cfg.Audience),
		jwt.WithExpirationRequired(),
		jwt.WithStrictDecoding(),
	)}, nil
}

// Issue returns a token for a customer. It expires after 30 days.
func (t *Tokens) Issue(customer uuid.UUID) (string, error) {
	now := time.Now()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.RegisteredClaims{
		Issuer:    t.cfg.Issuer,
		Audience:  jwt.ClaimStrings{t.cfg.Audience},
		Subject:   customer.String(),
		IssuedAt:  jwt.NewNumericDate(now),
		ExpiresAt: jwt.NewNumericDate(now.Add(tokenLife)),
	}).SignedString(t.cfg.Key)
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	return token, nil
}

// Customer returns the customer of a token that was issued with the same configuration and has not expired.
func (t *Tokens) Customer(token string) (uuid.UUID, error) {
	var claims jwt.RegisteredClaims
	if _, err := t.parser.ParseWithClaims(token, &claims, func(*jwt.Token) (any, error) { return t.cfg.Key, nil }); err != nil {
		return uuid.Nil, err
	}
	customer, err := keyset.ParseID(claims.Subject)
	if err != nil {
		return uuid.Nil, errors.New("the token's subject is not a customer's id")
	}
	return customer, nil
}

// SetCookie stores a token in the browser. Scripts cannot read the cookie, and browsers do not send it with requests
// that come from other sites.
func (t *Tokens) SetCookie(c *gin.Context, token string) {
	http.SetCookie(c.Writer, &http.Cookie{
		Name: t.cfg.Cookie, Value: token, Path: t.cfg.CookiePath, MaxAge: int(tokenLife.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: c.Request.TLS != nil || strings.EqualFold(c.GetHeader("X-Forwarded-Proto"), "https"),
	})
}

// SignUpContract is the piece of the OpenAPI document about [Tokens.SignUp], as POST /api/customers.
//
//go:embed openapi.yaml
var SignUpContract []byte

// SignUp answers with the token of a new, anonymous customer. It stores nothing, because clients that only sign up must
// not fill the database.
func (t *Tokens) SignUp(c *gin.Context) error {
	if err := RequireEmptyBody(c); err != nil {
		return err
	}
	id := keyset.NewID()
	token, err := t.Issue(id)
	if err != nil {
		return err
	}
	t.SetCookie(c, token)
	c.JSON(http.StatusCreated, gin.H{"customer_id": id, "token": token})
	return nil
}

// Authenticate rejects requests without a valid token, and stores the customer of the token for [Customer]. A bearer
// token has precedence over the cookie. Services that use the cookie need [SameOrigin] too, because Authenticate does
// not check which site a request comes from.
func (t *Tokens) Authenticate() gin.HandlerFunc {
	return Handle(func(c *gin.Context) error {
		scheme, token, _ := strings.Cut(c.GetHeader("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") { // the credentials of another scheme are for a proxy
			token, _ = c.Cookie(t.cfg.Cookie)
		}
		token = strings.TrimSpace(token)
		if token == "" {
			return Unauthorized.Errorf("The request needs a customer's token: %s, "+
				"and send the token as Authorization: Bearer.", t.cfg.SignUp)
		}
		customer, err := t.Customer(token)
		if err != nil {
			return &Error{Class: Unauthorized,
				Detail: "The token is not valid, or has expired: sign up again.", Err: err}
		}
		c.Set(customerKey, customer)
		return nil
	})
}

// Customer returns the customer of a request that passed [Tokens.Authenticate].
func Customer(c *gin.Context) uuid.UUID { return c.MustGet(customerKey).(uuid.UUID) }
