package auth

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"
)

// A server is recognised by a name in its certificate that no host gets, whatever the host's name is.
func TestCA_MemberCertificateIsNotOneOfAHost(t *testing.T) {
	ca, err := NewCA("fleet", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	made, err := ca.MemberCertificate([]string{"10.0.0.1"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(made.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	state := func(c *x509.Certificate) *tls.ConnectionState {
		return &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{c}}}
	}
	if of, ok := PeerOf(state(leaf)); ok || !IsMember(state(leaf)) {
		t.Errorf("the server's certificate is that of host %+v", of)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: ca.Pool(), DNSName: "10.0.0.1",
			KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Error(err)
		}
	}
	host := &x509.Certificate{}
	host.Subject.CommonName = MemberName
	if IsMember(state(host)) || IsMember(nil) || IsMember(&tls.ConnectionState{}) {
		t.Error("a host is taken for a server")
	}
}
