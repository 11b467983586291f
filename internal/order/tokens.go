package order

import (
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
)

const (
	tokenIssuer   = "shop"
	tokenAudience = "shop-customers"
	tokenLife     = 30 * 24 * time.Hour
	minKeyBytes   = 32 // as long as the hash: RFC 7518, 3.2
)

// Tokens issues and checks the signed tokens that customers show.
type Tokens struct {
	key    []byte
	parser *jwt.Parser
}

// NewTokens returns the tokens that are signed with a secret key of at least 32 bytes.
func NewTokens(key []byte) (*Tokens, error) {
	if len(key) < minKeyBytes {
		return nil, fmt.Errorf("token key: %d bytes, want at least %d", len(key), minKeyBytes)
	}
	return &Tokens{key: key, parser: jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()}),
		jwt.WithIssuer(tokenIssuer),
		jwt.WithAudience(tokenAudience),
		jwt.WithExpirationRequired(),
		jwt.WithStrictDecoding(),
	)}, nil
}

// Issue returns a token for a customer, good for 30 days.
func (t *Tokens) Issue(customer uuid.UUID) (string, error) {
	now := time.Now()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.RegisteredClaims{
		Issuer:    tokenIssuer,
		Audience:  jwt.ClaimStrings{tokenAudience},
		Subject:   customer.String(),
		IssuedAt:  jwt.NewNumericDate(now),
		ExpiresAt: jwt.NewNumericDate(now.Add(tokenLife)),
	}).SignedString(t.key)
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	return token, nil
}

// Customer returns whose token this is, if it was issued here and has not expired.
func (t *Tokens) Customer(token string) (uuid.UUID, error) {
	var claims jwt.RegisteredClaims
	if _, err := t.parser.ParseWithClaims(token, &claims, func(*jwt.Token) (any, error) { return t.key, nil }); err != nil {
		return uuid.Nil, err
	}
	customer, err := parseID(claims.Subject)
	if err != nil {
		return uuid.Nil, errors.New("token's subject is no customer")
	}
	return customer, nil
}
