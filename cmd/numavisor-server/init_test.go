package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// certify returns a certificate that a parent signs; without a parent it signs itself.
func certify(t *testing.T, parent *x509.Certificate, by *ecdsa.PrivateKey, ca bool, end time.Time) (
	*x509.Certificate, *ecdsa.PrivateKey,
) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(end.UnixNano()), Subject: pkix.Name{CommonName: "pki"},
		NotBefore: end.AddDate(-1, 0, 0), NotAfter: end, IsCA: ca, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// writePair writes a certificate and a key.
func writePair(t *testing.T, cert *x509.Certificate, key *ecdsa.PrivateKey) (certFile, keyFile string) {
	t.Helper()
	folder := t.TempDir()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cert": {Type: "CERTIFICATE", Bytes: cert.Raw},
		"key": {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(filepath.Join(folder, name), pem.EncodeToMemory(block), secretMode); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(folder, "cert"), filepath.Join(folder, "key")
}

// Who trusts the root of a PKI trusts a server whose fleet has an intermediate CA of it.
func TestInit_UsesAnIntermediateCA(t *testing.T) {
	soon := time.Now().AddDate(0, 1, 0)
	root, rootKey := certify(t, nil, nil, true, soon)
	between, betweenKey := certify(t, root, rootKey, true, soon)
	cert, key := writePair(t, between, betweenKey)
	folder := filepath.Join(t.TempDir(), "d")
	status, out := command("init", "--data", folder, "--address", "fleet.example.org:8443", "--ca-cert", cert,
		"--ca-key", key)
	if status != exitDone {
		t.Fatal(out)
	}
	ca, err := readCA(folder)
	if err != nil || !ca.Certificate.Equal(between) {
		t.Fatal(err)
	}
	chain, err := ca.ServerCertificate([]string{"fleet.example.org"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(chain.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	roots, sent := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(root)
	for _, der := range chain.Certificate[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		sent.AddCert(c)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{DNSName: "fleet.example.org", Roots: roots,
		Intermediates: sent}); err != nil {
		t.Error(err)
	}
}

func TestInit_RefusesWhatIsNoCA(t *testing.T) {
	soon := time.Now().AddDate(0, 1, 0)
	root, rootKey := certify(t, nil, nil, true, soon)
	leaf, leafKey := certify(t, root, rootKey, false, soon)
	old, oldKey := certify(t, nil, nil, true, time.Now().AddDate(0, 0, -1))
	good, goodKey := writePair(t, root, rootKey)
	leafFile, leafKeyFile := writePair(t, leaf, leafKey)
	oldFile, oldKeyFile := writePair(t, old, oldKey)
	for _, pair := range [][2]string{{good, ""}, {"", goodKey}, {good, leafKeyFile}, {leafFile, leafKeyFile},
		{oldFile, oldKeyFile}} {
		folder := filepath.Join(t.TempDir(), "d")
		if status, out := command("init", "--data", folder, "--address", "a.example.org:8443", "--ca-cert", pair[0],
			"--ca-key", pair[1]); status != exitUsage {
			t.Errorf("%q: status %d: %s", pair, status, out)
		}
		if _, err := os.Stat(folder); err == nil {
			t.Errorf("%q: a folder was made", pair)
		}
	}
}
