package rest

import (
	"crypto/hmac"
	"crypto/sha256"
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
	// A cookie is renewed on use when half of this is left, so that after each use it is valid for 45 days. The longest
	// time to pay is shorter.
	tokenLife   = 90 * 24 * time.Hour
	minKeyBytes = 32 // the length of the hash: RFC 7518, section 3.2
)

// TokenConfig configures [Tokens].
type TokenConfig struct {
	Key        []byte // secret, at least 32 bytes
	Issuer     string
	Audience   string
	Cookie     string // the beginning of the name of the cookie that carries a browser's token; a hash of Key follows
	CookiePath string // the path below which browsers send the cookie
	SignUp     string // how a client gets a token, in the imperative, for the detail of a problem
}

// Tokens issues and verifies the signed tokens (JWT, HS256) that identify customers.
type Tokens struct {
	cfg    TokenConfig
	cookie string // its name; browsers send the cookies of a host to all of its ports, so each deployment has its own
	parser *jwt.Parser
}

// NewTokens returns tokens with a configuration, or an error if the key is shorter than 32 bytes.
func NewTokens(cfg TokenConfig) (*Tokens, error) {
	if len(cfg.Key) < minKeyBytes {
		return nil, fmt.Errorf("token key: %d bytes, want at least %d", len(cfg.Key), minKeyBytes)
	}
	hash := hmac.New(sha256.New, cfg.Key)
	hash.Write([]byte("the name of the cookie"))
	cookie := fmt.Sprintf("%s_%x", cfg.Cookie, hash.Sum(nil)[:4])
	return &Tokens{cfg: cfg, cookie: cookie, parser: jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()}),
		jwt.WithIssuer(cfg.Issuer),
		jwt.WithAudience(cfg.Audience),
		jwt.WithExpirationRequired(),
		jwt.WithStrictDecoding(),
	)}, nil
}

// Issue returns a token for a customer. It expires after 90 days.
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

// Customer returns the customer of a token that was issued with the same configuration and has not expired, and the
// time until it expires.
func (t *Tokens) Customer(token string) (customer uuid.UUID, left time.Duration, err error) {
	var claims jwt.RegisteredClaims
	key := func(*jwt.Token) (any, error) { return t.cfg.Key, nil }
	if _, err := t.parser.ParseWithClaims(token, &claims, key); err != nil {
		return uuid.Nil, 0, err
	}
	if customer, err = keyset.ParseID(claims.Subject); err != nil {
		return uuid.Nil, 0, errors.New("the token's subject is not a customer's id")
	}
	return customer, time.Until(claims.ExpiresAt.Time), nil
}

// issueCookie returns a new token for a customer, and stores it in the browser. Scripts cannot read the cookie, and
// browsers do not send it with requests that come from other sites.
func (t *Tokens) issueCookie(c *gin.Context, customer uuid.UUID) (token string, err error) {
	if token, err = t.Issue(customer); err != nil {
		return "", err
	}
	http.SetCookie(c.Writer, &http.Cookie{
		Name: t.cookie, Value: token, Path: t.cfg.CookiePath, MaxAge: int(tokenLife.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: c.Request.TLS != nil || strings.EqualFold(c.GetHeader("X-Forwarded-Proto"), "https"),
	})
	return token, nil
}

// CustomerContract is the piece of the OpenAPI document about the tokens, with the answer of [Tokens.SignUp]. The piece
// that has the path of the sign-up refers to it.
//
//go:embed openapi.yaml
var CustomerContract []byte

// SignUp answers with the token of a new, anonymous customer. It stores nothing, because clients that only sign up must
// not fill the database. A request that has a valid token gets a new token of the same customer: otherwise a browser
// would lose the orders of its cookie.
func (t *Tokens) SignUp(c *gin.Context) error {
	if err := RequireEmptyBody(c); err != nil {
		return err
	}
	status := http.StatusOK
	sent, _ := t.sent(c)
	customer, _, err := t.Customer(sent)
	if err != nil {
		status, customer = http.StatusCreated, keyset.NewID()
	}
	token, err := t.issueCookie(c, customer)
	if err != nil {
		return err
	}
	c.JSON(status, gin.H{"customer_id": customer, "token": token})
	return nil
}

// Authenticate rejects requests without a valid token, and stores the customer of the token for [Customer]. A bearer
// token has precedence over the cookie. Services that use the cookie need [SameOrigin] too, because Authenticate does
// not check which site a request comes from. It renews a cookie when half of its life is left.
func (t *Tokens) Authenticate() gin.HandlerFunc {
	return Handle(func(c *gin.Context) error {
		token, cookie := t.sent(c)
		if token == "" {
			return Unauthorized.Errorf("The request needs a customer's token: %s, "+
				"and send the token as Authorization: Bearer.", t.cfg.SignUp)
		}
		customer, left, err := t.Customer(token)
		if err != nil {
			return &Error{Class: Unauthorized,
				Detail: "The token is not valid, or has expired: sign up again.", Err: err}
		}
		if cookie != "" && (cookie != t.cookie || left <= tokenLife/2) {
			if _, err := t.issueCookie(c, customer); err != nil {
				return err
			}
		}
		c.Set(customerKey, customer)
		return nil
	})
}

// sent returns the token of a request, or "", and the name of the cookie that has it: "" for a bearer token.
func (t *Tokens) sent(c *gin.Context) (token, cookie string) {
	scheme, token, _ := strings.Cut(c.GetHeader("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") { // the credentials of another scheme are for a proxy
		return strings.TrimSpace(token), ""
	}
	if token, err := c.Cookie(t.cookie); err == nil {
		return strings.TrimSpace(token), t.cookie
	}
	// Browsers may have a token of 30 days in a cookie without the hash until January 2027. It may also be the token of
	// another deployment on this host.
	token, _ = c.Cookie(t.cfg.Cookie)
	if _, _, err := t.Customer(token); err != nil {
		return "", ""
	}
	return token, t.cfg.Cookie
}

// Customer returns the customer of a request that passed [Tokens.Authenticate].
func Customer(c *gin.Context) uuid.UUID { return c.MustGet(customerKey).(uuid.UUID) }
