package auth

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync"
	"time"
)

// Renewing returns a function that returns a certificate for each handshake. It makes the certificate again once two
// thirds of its life are over, and when the clock says that it is not valid yet: the clock was ahead when it was made.
func Renewing(
	make func(now time.Time) (*tls.Certificate, error), now func() time.Time,
) func() (*tls.Certificate, error) {
	var mu sync.Mutex
	var made *tls.Certificate
	return func() (*tls.Certificate, error) {
		mu.Lock()
		defer mu.Unlock()
		at := now()
		if made != nil && Current(made.Leaf, at) {
			return made, nil
		}
		next, err := make(at)
		if err == nil {
			next.Leaf, err = x509.ParseCertificate(next.Certificate[0])
		}
		if err != nil {
			return nil, fmt.Errorf("renewing a certificate of this server: %w", err)
		}
		made = next
		return made, nil
	}
}

// Current reports whether a certificate is valid, and for at least a third of its life.
func Current(c *x509.Certificate, now time.Time) bool {
	return !now.Before(c.NotBefore) && now.Before(c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore)*2/3))
}
