package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"
)

func request(t testing.TB, key crypto.Signer, name string) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func TestToken_OnlyItsHashIdentifiesIt(t *testing.T) {
	a, b := NewToken(), NewToken()
	if a.Secret == b.Secret || a.Hash == b.Hash || Hash(a.Secret) != a.Hash {
		t.Errorf("got %+v and %+v", a, b)
	}
	if strings.Contains(a.Hash, a.Secret) || !IsUser(a.Secret) || IsJoin(a.Secret) || !IsJoin(NewJoin().Secret) {
		t.Errorf("the form of %s is wrong", a.ID)
	}
}

func TestCA_SignsOnlyWhatTheServerDecides(t *testing.T) {
	now := time.Now()
	made, err := NewCA("fleet", now)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := made.PEM()
	if err != nil {
		t.Fatal(err)
	}
	ca, err := ParseCA(certificate, key)
	if err != nil || ca.Fingerprint() != made.Fingerprint() {
		t.Fatalf("got %v", err)
	}
	_, own, _ := ed25519.GenerateKey(rand.Reader)
	signed, err := ca.SignHost(Identity{"h1", "machine"}, request(t, own, "another-host"), now)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(signed)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	chains, err := cert.Verify(x509.VerifyOptions{Roots: ca.Pool(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, CurrentTime: now})
	if err != nil {
		t.Fatal(err)
	}
	got, ok := PeerOf(&tls.ConnectionState{VerifiedChains: chains})
	if !ok || got != (Identity{"h1", "machine"}) || cert.IsCA {
		t.Errorf("got %+v", got)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: ca.Pool(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err == nil {
		t.Error("a host's certificate can stand for a server")
	}
	if _, ok := PeerOf(&tls.ConnectionState{PeerCertificates: chains[0]}); ok {
		t.Error("a certificate that was not verified names a host")
	}
}

func TestSignHost_RefusesOtherRequests(t *testing.T) {
	ca, err := NewCA("fleet", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	odd, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	forged := request(t, good, "h")
	block, _ := pem.Decode(forged)
	block.Bytes[len(block.Bytes)-3] ^= 1
	for name, data := range map[string][]byte{
		"empty": nil, "rsa": request(t, weak, "h"), "p224": request(t, odd, "h"), "forged": pem.EncodeToMemory(block),
		"certificate": ca.CertificatePEM(),
	} {
		if _, err := ca.SignHost(Identity{Host: "h"}, data, time.Now()); !errors.Is(err, ErrRequest) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func FuzzSignHost(f *testing.F) {
	_, key, _ := ed25519.GenerateKey(rand.Reader)
	f.Add(request(f, key, "h"))
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n"))
	ca, err := NewCA("fleet", time.Now())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := ca.SignHost(Identity{Host: "h"}, data, time.Now()); err != nil && !errors.Is(err, ErrRequest) {
			t.Errorf("got %v", err)
		}
	})
}
