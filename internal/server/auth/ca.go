package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"
)

// Validity of certificates. A daemon renews its own long before it expires.
const (
	caYears    = 10
	HostDays   = 90
	ServerDays = 365
	// early allows for clocks of hosts that are late.
	early = time.Hour
)

// CA signs the certificates of the fleet's servers and hosts.
type CA struct {
	Certificate *x509.Certificate
	key         crypto.Signer
}

// Identity is the host that a certificate is for.
type Identity struct {
	Host string
	ID   string // of the machine; empty: not known
}

// NewCA makes a CA.
func NewCA(name string, now time.Time) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of the CA: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-early), NotAfter: now.AddDate(caYears, 0, 0),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making the certificate of the CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("making the certificate of the CA: %w", err)
	}
	return &CA{cert, key}, nil
}

// ParseCA reads a CA from its certificate and key, PEM.
func ParseCA(certificate, key []byte) (*CA, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("reading the CA: %w", err)
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.New("reading the CA: the certificate is none of a CA")
	}
	return &CA{pair.Leaf, signer}, nil
}

// PEM returns the CA's certificate, and its key.
func (c *CA) PEM() (certificate, key []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.key)
	if err != nil {
		return nil, nil, fmt.Errorf("writing the key of the CA: %w", err)
	}
	return c.CertificatePEM(), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// CertificatePEM returns the CA's certificate.
func (c *CA) CertificatePEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate.Raw})
}

// Fingerprint identifies the CA: sha256:HEX of its certificate.
func (c *CA) Fingerprint() string { return Fingerprint(c.Certificate) }

// Fingerprint returns sha256:HEX of a certificate.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Pool returns the CA as the one to trust.
func (c *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.Certificate)
	return pool
}

// SignHost returns a client certificate, PEM, for the key of a signing request. Of the request only the
// key counts: the names are the server's decision.
func (c *CA) SignHost(of Identity, request []byte, now time.Time) ([]byte, error) {
	key, err := keyOf(request)
	if err != nil {
		return nil, err
	}
	return c.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: of.Host, SerialNumber: of.ID}, NotAfter: now.AddDate(0, 0, HostDays),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, key, now)
}

// ServerCertificate returns a certificate for a server that is reached by these names and addresses.
func (c *CA) ServerCertificate(names []string, now time.Time) (*tls.Certificate, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "numavisor-server"}, NotAfter: now.AddDate(0, 0, ServerDays),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	return c.certify(template, names, now)
}

// MemberName is in the certificates by which the servers of a fleet recognise each other. The CA signs
// it for no host.
const MemberName = "member.numavisor.internal"

// MemberCertificate returns a certificate for both sides of the connections between servers. It has no
// common name, so that it is not taken for that of a host.
func (c *CA) MemberCertificate(names []string, now time.Time) (*tls.Certificate, error) {
	return c.certify(member(now), append([]string{MemberName}, names...), now)
}

func member(now time.Time) *x509.Certificate {
	return &x509.Certificate{
		NotAfter:    now.AddDate(0, 0, ServerDays),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// RenewMemberPEM returns such a certificate for a key that the server has, PEM.
func (c *CA) RenewMemberPEM(names []string, key crypto.PublicKey, now time.Time) (certificate []byte, err error) {
	return c.signFor(member(now), append([]string{MemberName}, names...), key, now)
}

// MemberPEM returns such a certificate and its key, PEM.
func (c *CA) MemberPEM(names []string, now time.Time) (certificate, key []byte, err error) {
	pair, err := c.MemberCertificate(names, now)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		return nil, nil, fmt.Errorf("writing the key of the server: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// IsMember reports whether a verified client certificate is that of one of the fleet's servers.
func IsMember(state *tls.ConnectionState) bool {
	return state != nil && len(state.VerifiedChains) > 0 && len(state.VerifiedChains[0]) > 0 &&
		slices.Contains(state.VerifiedChains[0][0].DNSNames, MemberName)
}

// certify signs a certificate for names and addresses, with a new key.
func (c *CA) certify(template *x509.Certificate, names []string, now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of the server: %w", err)
	}
	signed, err := c.signFor(template, names, key.Public(), now)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(signed)
	return &tls.Certificate{Certificate: [][]byte{block.Bytes, c.Certificate.Raw}, PrivateKey: key}, nil
}

// signFor signs a certificate of a key for names and addresses.
func (c *CA) signFor(
	template *x509.Certificate, names []string, key crypto.PublicKey, now time.Time,
) ([]byte, error) {
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return c.sign(template, key, now)
}

func (c *CA) sign(template *x509.Certificate, key crypto.PublicKey, now time.Time) ([]byte, error) {
	template.SerialNumber, template.NotBefore = serial(), now.Add(-early)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	if template.NotAfter.After(c.Certificate.NotAfter) {
		template.NotAfter = c.Certificate.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, template, c.Certificate, key, c.key)
	if err != nil {
		return nil, fmt.Errorf("signing a certificate: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// ErrRequest means that a certificate signing request cannot be used.
var ErrRequest = errors.New("the certificate signing request cannot be used")

// keyOf returns the key of a signing request, whose signature proves that the sender has it.
func keyOf(request []byte) (crypto.PublicKey, error) {
	block, _ := pem.Decode(request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, fmt.Errorf("%w: it is not in PEM form", ErrRequest)
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: it cannot be read", ErrRequest)
	}
	switch key := csr.PublicKey.(type) { // RSA keys can be large enough to keep a server busy
	case ed25519.PublicKey:
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() {
			return nil, fmt.Errorf("%w: allowed keys are Ed25519, ECDSA P-256 and P-384", ErrRequest)
		}
	default:
		return nil, fmt.Errorf("%w: allowed keys are Ed25519, ECDSA P-256 and P-384", ErrRequest)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("%w: its signature is wrong", ErrRequest)
	}
	return csr.PublicKey, nil
}

// PeerOf returns the host of a verified client certificate; ok is false without one.
func PeerOf(state *tls.ConnectionState) (of Identity, ok bool) {
	if state == nil || len(state.VerifiedChains) == 0 || len(state.VerifiedChains[0]) == 0 {
		return Identity{}, false
	}
	subject := state.VerifiedChains[0][0].Subject
	return Identity{Host: subject.CommonName, ID: subject.SerialNumber}, subject.CommonName != ""
}

func serial() *big.Int {
	random := make([]byte, 16)
	_, _ = rand.Read(random) // it never fails: crypto/rand
	random[0] &= 0x7f
	return new(big.Int).SetBytes(random)
}
