// Package auth makes and checks what proves an identity to a fleet's server: tokens of users,
// one-time tokens of joining hosts, and the certificates of its own CA.
package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"
)

// Prefixes of tokens, so that people and secret scanners recognize them.
const (
	userPrefix = "nvu_"
	joinPrefix = "nvj_"
)

// Token is a new secret. Only its hash is stored.
type Token struct {
	ID     string // names the token in lists
	Secret string
	Hash   string
}

// NewToken makes a token of a user.
func NewToken() Token { return newToken(userPrefix) }

// NewJoin makes a one-time token of a joining host.
func NewJoin() Token { return newToken(joinPrefix) }

// newToken makes a token of 256 random bits.
func newToken(prefix string) Token {
	random := make([]byte, 32)
	_, _ = rand.Read(random) // it never fails: crypto/rand
	secret := prefix + base64.RawURLEncoding.EncodeToString(random)
	hash := Hash(secret)
	return Token{ID: hash[:12], Secret: secret, Hash: hash}
}

// Hash returns what is stored of a token. A token has 256 random bits, so that a fast hash
// without salt is enough: nobody can try them all.
func Hash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// IsJoin reports whether a text has the form of a one-time token.
func IsJoin(secret string) bool { return strings.HasPrefix(secret, joinPrefix) && len(secret) < 100 }

// IsUser reports whether a text has the form of a user's token.
func IsUser(secret string) bool { return strings.HasPrefix(secret, userPrefix) && len(secret) < 100 }
