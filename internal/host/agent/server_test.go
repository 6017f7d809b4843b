package agent_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	agentapi "github.com/numavisor/numavisor/internal/api/agent"
	"github.com/numavisor/numavisor/internal/fleet"
)

// fleetServer speaks the server's side of the protocol, as its documentation says.
type fleetServer struct {
	*httptest.Server
	t        *testing.T
	ca       *x509.Certificate
	key      *ecdsa.PrivateKey
	validFor time.Duration // of hosts' certificates

	mu       sync.Mutex
	token    string
	joins    int
	renewals int
	desired  fleet.Desired
	changed  chan struct{} // closed at a change
	reports  []fleet.Report
	loads    []fleet.Loads
	full     bool // the next answer to loads asks for all
	statuses map[string]fleet.VMStatus
	history  []fleet.VMStatus
	mute     bool // requests are refused
	frozen   bool // streams are silent
}

const heartbeat = 100 * time.Millisecond

func newServer(t *testing.T) *fleetServer {
	t.Helper()
	s := &fleetServer{t: t, token: "once", validFor: time.Hour, changed: make(chan struct{}),
		statuses: map[string]fleet.VMStatus{}}
	s.ca, s.key = newCA(t)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /agent/v1/join", s.join)
	mux.HandleFunc("POST /agent/v1/renew", s.host(s.renew))
	mux.HandleFunc("PUT /agent/v1/report", s.host(s.report))
	mux.HandleFunc("POST /agent/v1/loads", s.host(s.takeLoads))
	mux.HandleFunc("GET /agent/v1/desired", s.host(s.stream))
	mux.HandleFunc("PUT /agent/v1/vms/{name}/status", s.host(s.status))
	s.Server = httptest.NewUnstartedServer(mux)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // tests cut connections
	pool := x509.NewCertPool()
	pool.AddCert(s.ca)
	serverKey, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	der := s.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{{127, 0, 0, 1}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, &serverKey.PublicKey)
	s.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool, MinVersion: tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der, s.ca.Raw}, PrivateKey: serverKey}}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func newCA(t *testing.T) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fleet"}, IsCA: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return ca, key
}

func (s *fleetServer) sign(c *x509.Certificate, key any) []byte {
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(s.validFor)
	c.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, c, s.ca, key, s.key)
	if err != nil {
		s.t.Error(err)
	}
	return der
}

func (s *fleetServer) fingerprint() string {
	sum := sha256.Sum256(s.ca.Raw)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (s *fleetServer) address() string { return strings.TrimPrefix(s.URL, "https://") }

func problem(w http.ResponseWriter, code int, why string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"title": http.StatusText(code), "status": code, "detail": why})
}

// host lets only hosts with a certificate in.
func (s *fleetServer) host(do func(w http.ResponseWriter, r *http.Request, host string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		mute := s.mute
		s.mu.Unlock()
		switch {
		case len(r.TLS.PeerCertificates) == 0:
			problem(w, http.StatusUnauthorized, "no certificate")
		case mute:
			problem(w, http.StatusServiceUnavailable, "not now")
		case r.ProtoMajor != 2:
			problem(w, http.StatusHTTPVersionNotSupported, "the protocol is HTTP/2")
		default:
			do(w, r, r.TLS.PeerCertificates[0].Subject.CommonName)
		}
	}
}

func (s *fleetServer) certify(w http.ResponseWriter, csr, host string) {
	block, _ := pem.Decode([]byte(csr))
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || request.CheckSignature() != nil {
		problem(w, http.StatusBadRequest, "bad request for a certificate")
		return
	}
	der := s.sign(&x509.Certificate{Subject: pkix.Name{CommonName: host},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, request.PublicKey)
	_ = json.NewEncoder(w).Encode(agentapi.Joined{
		Certificate: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		CA:          string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.ca.Raw}))})
}

func (s *fleetServer) join(w http.ResponseWriter, r *http.Request) {
	var j agentapi.Join
	_ = json.NewDecoder(r.Body).Decode(&j)
	s.mu.Lock()
	ok := j.Token == s.token
	if ok {
		s.token = "used"
		s.joins++
	}
	s.mu.Unlock()
	if !ok {
		problem(w, http.StatusForbidden, "the token is not valid")
		return
	}
	s.certify(w, j.CSR, j.Host)
}

func (s *fleetServer) renew(w http.ResponseWriter, r *http.Request, host string) {
	var j agentapi.Renew
	_ = json.NewDecoder(r.Body).Decode(&j)
	s.mu.Lock()
	s.renewals++
	s.validFor = time.Hour
	s.mu.Unlock()
	s.certify(w, j.CSR, host)
}

func (s *fleetServer) report(_ http.ResponseWriter, r *http.Request, _ string) {
	var got fleet.Report
	if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
		if r.Context().Err() == nil { // the agent may have been ended in the midst of it
			s.t.Errorf("a report cannot be read: %v", err)
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports = append(s.reports, got)
}

func (s *fleetServer) takeLoads(w http.ResponseWriter, r *http.Request, _ string) {
	var got fleet.Loads
	_ = json.NewDecoder(r.Body).Decode(&got)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loads = append(s.loads, got)
	_ = json.NewEncoder(w).Encode(agentapi.LoadsAnswer{Full: s.full})
	s.full = false
}

func (s *fleetServer) status(w http.ResponseWriter, r *http.Request, host string) {
	var got fleet.VMStatus
	if err := json.NewDecoder(r.Body).Decode(&got); err != nil && r.Context().Err() != nil {
		return // as above
	}
	if got.Host != host || got.Name != r.PathValue("name") {
		problem(w, http.StatusForbidden, "of another host or VM")
		s.t.Errorf("host %s reports %+v", host, got)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statuses[got.Name] = got
	s.history = append(s.history, got)
}

func (s *fleetServer) stream(w http.ResponseWriter, r *http.Request, _ string) {
	for {
		s.mu.Lock()
		d, changed, frozen := s.desired, s.changed, s.frozen
		s.mu.Unlock()
		if !frozen {
			if json.NewEncoder(w).Encode(d) != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		case <-time.After(heartbeat):
		}
	}
}

// want changes the desired state.
func (s *fleetServer) want(vms ...fleet.VM) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortFunc(vms, func(a, b fleet.VM) int { return strings.Compare(a.Name, b.Name) })
	s.desired = fleet.Desired{Revision: s.desired.Revision + 1, VMs: vms}
	close(s.changed)
	s.changed = make(chan struct{})
}

// set changes how the server behaves.
func (s *fleetServer) set(do func(*fleetServer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(s)
}

// until waits until the server's state satisfies a condition.
func (s *fleetServer) until(t *testing.T, what string, ok func(*fleetServer) bool) {
	t.Helper()
	end := time.Now().Add(10 * time.Second)
	for time.Now().Before(end) {
		s.mu.Lock()
		done := ok(s)
		s.mu.Unlock()
		if done {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.Fatalf("%s: not within 10 s; statuses are %+v", what, s.statuses)
}

// phase waits until a VM is reported in a phase of the present generation.
func (s *fleetServer) phase(t *testing.T, name string, p fleet.Phase) {
	t.Helper()
	s.until(t, name+" "+string(p), func(s *fleetServer) bool {
		i := slices.IndexFunc(s.desired.VMs, func(v fleet.VM) bool { return v.Name == name })
		got := s.statuses[name]
		return got.Phase == p && (i < 0 || got.Generation == s.desired.VMs[i].Generation)
	})
}
