package agent

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	agentapi "github.com/numavisor/numavisor/internal/api/agent"
	"github.com/numavisor/numavisor/internal/host/lock"
)

// ErrNotMember means that the daemon has not joined a fleet.
var ErrNotMember = errors.New("this host has not joined a fleet")

// ErrMember means that the daemon has joined a fleet already.
var ErrMember = errors.New("this host has joined a fleet already")

// Member is a host's membership of a fleet. It is stored in one file that only its owner may
// read: it contains the host's key.
type Member struct {
	Server      string `json:"server"` // https://HOST:PORT
	Host        string `json:"host"`   // the host's name in the fleet
	CA          string `json:"ca"`     // PEM, of the servers
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
	// Others are the addresses, HOST:PORT, of the servers that the fleet last named.
	Others []string `json:"others,omitempty"`
}

// servers are the URLs of all servers that the host knows, that at which it has joined first.
func (m *Member) servers() []string {
	out := []string{m.Server}
	for _, address := range m.Others {
		if u, err := serverURL(address); err == nil && !slices.Contains(out, u) {
			out = append(out, u)
		}
	}
	return out
}

const memberFile = "member.json"

// LoadMember reads the membership below a folder, or returns ErrNotMember.
func LoadMember(folder string) (*Member, error) {
	file, _, err := lock.OpenRegular(filepath.Join(folder, memberFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotMember
	}
	if err != nil {
		return nil, fmt.Errorf("reading the membership of the fleet: %w", err)
	}
	defer func() { _ = file.Close() }()
	m := &Member{}
	if err := json.NewDecoder(io.LimitReader(file, maxAnswer)).Decode(m); err != nil {
		return nil, fmt.Errorf("reading %s: %w; remove it, and join again", file.Name(), err)
	}
	if _, err := m.pair(); err != nil {
		return nil, fmt.Errorf("reading %s: %w; remove it, and join again", file.Name(), err)
	}
	return m, nil
}

func (m *Member) store(folder string) error {
	if err := storeFile(folder, memberFile, m); err != nil {
		return fmt.Errorf("storing the membership of the fleet: %w", err)
	}
	return nil
}

// Leave removes the membership. The VMs run on, and the host stays in the fleet's records
// until an operator removes it there.
func Leave(folder string) error {
	err := os.Remove(filepath.Join(folder, memberFile))
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotMember
	}
	return errors.Join(err, os.RemoveAll(filepath.Join(folder, stateFile)))
}

// storeFile replaces a file as a whole; after a crash it has the old or the new content.
func storeFile(folder, name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := lock.Folder(folder); err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(folder, name), append(data, '\n'), 0o600, renameio.WithTempDir(folder),
		renameio.WithStaticPermissions(0o600))
}

func (m *Member) pair() (tls.Certificate, error) {
	pair, err := tls.X509KeyPair([]byte(m.Certificate), []byte(m.Key))
	if err == nil && pair.Leaf == nil {
		pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0])
	}
	return pair, err
}

// JoinRequest says which fleet to join, and as which host.
type JoinRequest struct {
	Server      string // HOST:PORT or https://HOST:PORT
	Token       string // one-time
	Fingerprint string // of the CA's certificate: sha256:HEX
	Host        string // the host's name in the fleet
	ID          string // of the machine
	Rack        string
}

// Join asks the fleet's server for a certificate, and stores the membership below the folder.
// It trusts a server only if the server's CA has the fingerprint.
func Join(ctx context.Context, folder string, r JoinRequest) (*Member, error) {
	if m, err := LoadMember(folder); err == nil {
		return nil, fmt.Errorf("%w, as host %s of the server %s; 'numavisor daemon --leave' ends that", ErrMember,
			m.Host, m.Server)
	} else if !errors.Is(err, ErrNotMember) {
		return nil, err
	}
	server, err := serverURL(r.Server)
	if err != nil {
		return nil, err
	}
	pin, err := parseFingerprint(r.Fingerprint)
	if err != nil {
		return nil, err
	}
	// Check that the folder can be written before the token is used up.
	if err := lock.Folder(folder); err != nil {
		return nil, fmt.Errorf("the folder of the membership: %w", err)
	}
	key, request, err := newKey(r.Host)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: pinned(pin, server)}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var got agentapi.Joined
	c := connection{base: server, http: &http.Client{Transport: transport}}
	err = c.send(ctx, http.MethodPost, "/agent/v1/join",
		agentapi.Join{Token: r.Token, Host: r.Host, ID: r.ID, Rack: r.Rack, CSR: request}, &got)
	if err != nil {
		return nil, fmt.Errorf("joining the fleet: %w", err)
	}
	m := &Member{Server: server, Host: r.Host, CA: got.CA, Certificate: got.Certificate, Key: key}
	if err := m.check(pin); err != nil {
		return nil, fmt.Errorf("joining the fleet: %w", err)
	}
	return m, m.store(folder)
}

// check refuses an answer that does not fit the request.
func (m *Member) check(pin []byte) error {
	block, _ := pem.Decode([]byte(m.CA))
	if block == nil {
		return errors.New("the server sent no CA")
	}
	if sum := sha256.Sum256(block.Bytes); pin != nil && subtle.ConstantTimeCompare(sum[:], pin) != 1 {
		return errors.New("the server sent another CA than that of the fingerprint")
	}
	pair, err := m.pair()
	if err != nil {
		return fmt.Errorf("the certificate from the server: %w", err)
	}
	if pair.Leaf.Subject.CommonName != m.Host {
		return fmt.Errorf("the server sent a certificate for host %q, not %q", pair.Leaf.Subject.CommonName, m.Host)
	}
	return nil
}

// serverURL completes the address of a server.
func serverURL(address string) (string, error) {
	whole := address
	if !strings.Contains(whole, "://") {
		whole = "https://" + whole
	}
	u, err := url.Parse(whole)
	if err == nil {
		_, _, err = net.SplitHostPort(u.Host)
	}
	if err != nil || u.Scheme != "https" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return "", fmt.Errorf("server %q: give HOST:PORT or https://HOST:PORT", address)
	}
	return "https://" + u.Host, nil
}

// parseFingerprint reads sha256:HEX; the prefix, and colons between bytes, may be missing.
func parseFingerprint(text string) ([]byte, error) {
	sum, err := hex.DecodeString(strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(text), "sha256:"), ":", ""))
	if err != nil || len(sum) != sha256.Size {
		return nil, fmt.Errorf("CA fingerprint %q: give sha256: and 64 hexadecimal digits, as the server prints it",
			text)
	}
	return sum, nil
}

// newKey returns a key, and a request for a certificate, both PEM.
func newKey(host string) (key, request string, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", fmt.Errorf("making the host's key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", fmt.Errorf("making the host's key: %w", err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: host}}, private)
	if err != nil {
		return "", "", fmt.Errorf("making the request for a certificate: %w", err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})), nil
}

// errWrongCA means that the server's CA is not that of the fingerprint.
var errWrongCA = errors.New("the server's CA does not have the fingerprint: another program answers at the " +
	"address, or the fingerprint is of another fleet")

// pinned trusts the server whose chain has the CA of a fingerprint.
func pinned(pin []byte, server string) *tls.Config {
	u, _ := url.Parse(server)
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		ServerName:         u.Hostname(),
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection checks the chain against the fingerprint
		VerifyConnection: func(s tls.ConnectionState) error {
			for _, c := range s.PeerCertificates {
				if sum := sha256.Sum256(c.Raw); !bytes.Equal(sum[:], pin) {
					continue
				}
				roots := x509.NewCertPool()
				roots.AddCert(c)
				_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: u.Hostname()})
				return err
			}
			return errWrongCA
		},
	}
}

// renewal is when a certificate is renewed: after two thirds of its life.
func renewal(c *x509.Certificate) time.Time {
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)
}
