package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	agentapi "github.com/numavisor/numavisor/internal/api/agent"
	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/server/auth"
	"github.com/numavisor/numavisor/internal/server/store"
)

// Bounds of the messages of daemons. A report has the topology and the VMs of one host, and must fit
// into a transaction.
const (
	maxReport = 1 << 20
	maxLoads  = 4 << 20
	maxStatus = 256 << 10
	maxJoin   = 64 << 10
	// readTime limits the reading of one message, writeTime that of writing one.
	readTime  = 20 * time.Second
	writeTime = 10 * time.Second
)

// agents serves the daemons of hosts.
type agents struct{ *Server }

// AgentHandler serves the protocol of package agentapi. Requests need a client certificate of the
// CA that the TLS layer has verified, except for joining.
func (s *Server) AgentHandler() http.Handler {
	a := &agents{s}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /agent/v1/join", answerTo(maxJoin, func(r *http.Request, j *agentapi.Join) (any, error) {
		return a.join(r.Context(), j)
	}))
	mux.HandleFunc("POST /agent/v1/renew", ofHost(a, maxJoin, func(host string, r *http.Request,
		n *agentapi.Renew) (any, error) {
		return a.renew(r, n)
	}))
	mux.HandleFunc("PUT /agent/v1/report", ofHost(a, maxReport, func(host string, _ *http.Request,
		m *fleet.Report) (any, error) {
		return nil, a.Report(host, *m)
	}))
	mux.HandleFunc("POST /agent/v1/loads", ofHost(a, maxLoads, func(host string, _ *http.Request,
		m *fleet.Loads) (any, error) {
		return a.Loads(host, *m)
	}))
	mux.HandleFunc("PUT /agent/v1/vms/{name}/status",
		ofHost(a, maxStatus, func(host string, r *http.Request, m *fleet.VMStatus) (any, error) {
			if m.Name != r.PathValue("name") {
				return nil, fleetapi.NewProblem(fleetapi.ProblemInvalid, "name: differs from the VM in the path")
			}
			return nil, a.Status(host, *m)
		}))
	mux.HandleFunc("GET /agent/v1/desired", a.streamDesired)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, fleetapi.NewProblem(fleetapi.ProblemNotFound,
			r.Method+" "+r.URL.Path+" is not in the protocol of daemons"))
	})
	return mux
}

// refuse answers with a problem.
func refuse(w http.ResponseWriter, err error) {
	var p *fleetapi.Problem
	if !errors.As(err, &p) {
		p = fleetapi.NewProblem(fleetapi.ProblemOther, "the server failed: its log has the reason")
	}
	w.Header().Set("Content-Type", p.ContentType(""))
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // it fails only if the client has closed the connection
}

// answerTo reads a message, and writes the answer.
func answerTo[T any](most int64, f func(*http.Request, *T) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTime)) // tests have connections without
		message, err := readMessage[T](w, r, most)
		var answer any
		if err == nil {
			answer, err = f(r, message)
		}
		if err != nil {
			refuse(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if answer == nil {
			answer = struct{}{}
		}
		_ = json.NewEncoder(w).Encode(answer) // as in refuse
	}
}

// readMessage reads one JSON document of a bounded size. Unknown fields are ignored: the daemon may be newer.
func readMessage[T any](w http.ResponseWriter, r *http.Request, most int64) (*T, error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		p := fleetapi.NewProblem(fleetapi.ProblemInvalid, "Content-Type: allowed is application/json")
		p.Status = http.StatusUnsupportedMediaType
		return nil, p
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		p := fleetapi.NewProblem(fleetapi.ProblemInvalid, fmt.Sprintf("the message is larger than %d bytes", most))
		p.Status = http.StatusRequestEntityTooLarge
		return nil, p
	}
	var message *T
	d := json.NewDecoder(bytes.NewReader(data))
	if err == nil {
		err = d.Decode(&message)
	}
	if err == nil && d.More() {
		err = errors.New("more data follows")
	}
	if err != nil || message == nil {
		return nil, fleetapi.NewProblem(fleetapi.ProblemInvalid, "the message is not a JSON document of its kind")
	}
	return message, nil
}

// ofHost answers messages of hosts that have joined.
func ofHost[T any](a *agents, most int64, f func(host string, r *http.Request, m *T) (any, error)) http.HandlerFunc {
	answer := answerTo(most, func(r *http.Request, m *T) (any, error) {
		host, err := a.peer(r)
		if err != nil {
			return nil, err
		}
		a.alive.hear(host)
		out, err := f(host, r, m)
		var p *fleetapi.Problem
		if err != nil && !errors.As(err, &p) {
			a.Log.Error("a message of a host failed", "host", host, "path", r.URL.Path, "error", err)
		}
		return out, err
	})
	return func(w http.ResponseWriter, r *http.Request) {
		if _, err := a.peer(r); err != nil { // before the body is read
			refuse(w, err)
			return
		}
		answer(w, r)
	}
}

// peer returns the host of a request's certificate.
func (a *agents) peer(r *http.Request) (string, error) {
	of, ok := auth.PeerOf(r.TLS)
	if !ok {
		p := fleetapi.NewProblem(fleetapi.ProblemRole, "a client certificate is needed: the host must join first")
		p.Status = http.StatusUnauthorized
		return "", p
	}
	var err error
	a.cache.read(func(st *state) {
		h, known := st.hosts[of.Host]
		switch {
		case !known && !a.cache.ready:
			err = fleetapi.NewProblem(fleetapi.ProblemUnavailable, "the server has not read its store yet")
		case !known:
			err = fleetapi.NewProblem(fleetapi.ProblemRole,
				"host "+of.Host+" is not in the fleet (any more): it must join")
		case h.value.ID != of.ID:
			err = fleetapi.NewProblem(fleetapi.ProblemRole,
				"host "+of.Host+" is another machine now: this one must join")
		}
	})
	return of.Host, err
}

// checkHostName: names of hosts are parts of keys and of certificates.
func checkHostName(name string) error {
	if name == "" || len(name) > 240 || !utf8.ValidString(name) ||
		strings.ContainsFunc(name, func(r rune) bool {
			return r == '/' || unicode.IsControl(r) ||
				unicode.IsSpace(r)
		}) {
		return fleetapi.NewProblem(fleetapi.ProblemInvalid,
			"host: allowed are 1 to 240 bytes of text without '/', spaces and control characters")
	}
	return nil
}

// join lets a machine into the fleet: its token ends with it.
func (a *agents) join(ctx context.Context, j *agentapi.Join) (*agentapi.Joined, error) {
	if err := checkHostName(j.Host); err != nil {
		return nil, err
	}
	if len(j.ID) > 200 || len(j.Rack) > 240 {
		return nil, fleetapi.NewProblem(fleetapi.ProblemInvalid, "id, rack: too long")
	}
	refused := fleetapi.NewProblem(fleetapi.ProblemRole,
		"the token is unknown, was used already or has expired: make another one with POST /v1/joins")
	if !auth.IsJoin(j.Token) {
		return nil, refused
	}
	hash := auth.Hash(j.Token)
	signed, err := a.CA.SignHost(auth.Identity{Host: j.Host, ID: j.ID}, []byte(j.CSR), a.Now())
	if err != nil {
		return nil, invalidRequest(err)
	}
	_, err = a.decide(ctx, func(st *state, t *transaction) error {
		token, ok := st.joins[hash]
		if !ok || a.Now().After(token.value.Expires) {
			return refused
		}
		at, known := st.hosts[j.Host]
		if known && at.value.ID != j.ID {
			return fleetapi.NewProblem(fleetapi.ProblemExists, "host "+j.Host+
				" is in the fleet, and is another machine: choose another name, or remove that host first")
		}
		t.require(store.Joins+hash, token.revision)
		t.remove(store.Joins + hash)
		t.require(store.Hosts+j.Host, at.revision)
		if !known {
			h := fleet.Host{Name: j.Host, ID: j.ID, Rack: j.Rack, Joined: a.Now().UTC().Truncate(time.Second)}
			t.put(store.Hosts+j.Host, h)
			t.put(store.Audit+fmt.Sprintf("%016x-%s", a.Now().UnixNano(), hash[:6]), fleetapi.AuditEntry{
				ID: fmt.Sprintf("%016x-%s", a.Now().UnixNano(), hash[:6]), At: a.Now().UTC(), User: token.value.By,
				Operation: "join", Kind: fleetapi.AboutHost, Name: j.Host, Object: "host " + j.Host, After: h})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	a.Log.Info("a host has joined", "host", j.Host)
	return &agentapi.Joined{Certificate: string(signed), CA: string(a.CA.CertificatePEM())}, nil
}

func invalidRequest(err error) error {
	if errors.Is(err, auth.ErrRequest) {
		return fleetapi.NewProblem(fleetapi.ProblemInvalid, "csr: "+err.Error())
	}
	return err
}

// renew gives a host that has joined a new certificate.
func (a *agents) renew(r *http.Request, n *agentapi.Renew) (*agentapi.Joined, error) {
	of, _ := auth.PeerOf(r.TLS) // peer has checked it
	signed, err := a.CA.SignHost(of, []byte(n.CSR), a.Now())
	if err != nil {
		return nil, invalidRequest(err)
	}
	return &agentapi.Joined{Certificate: string(signed), CA: string(a.CA.CertificatePEM())}, nil
}

// Report implements agentapi.Server.
func (a *agents) Report(host string, m fleet.Report) error {
	if m.Protocol < agentapi.Protocol-1 || m.Protocol > agentapi.Protocol {
		p := fleetapi.NewProblem(fleetapi.ProblemConflict, fmt.Sprintf(
			"the daemon speaks protocol %d, the server %d and the one before: upgrade the older program",
			m.Protocol, agentapi.Protocol))
		p.Status = http.StatusUpgradeRequired
		return p
	}
	if len(m.Program) > 200 {
		return fleetapi.NewProblem(fleetapi.ProblemInvalid, "program: too long")
	}
	if err := errors.Join(m.Inventory.Validate(), m.Inventory.Topology.Validate()); err != nil {
		return fleetapi.NewProblem(fleetapi.ProblemInvalid, "inventory: "+cut(err.Error()))
	}
	m.Inventory.Load = nil // loads come by their own messages
	_, err := a.decide(context.Background(), func(st *state, t *transaction) error {
		h, ok := st.hosts[host]
		if !ok {
			return noSuchHost(host)
		}
		if id := m.Inventory.ID; id != "" && h.value.ID != "" && id != h.value.ID {
			return fleetapi.NewProblem(fleetapi.ProblemRole, "the report is about another machine than host "+host)
		}
		t.require(store.Hosts+host, h.revision)
		t.put(store.Reports+host, m)
		return nil
	})
	return err
}

// cut bounds a text that a daemon has influence on.
func cut(text string) string {
	const most = 2000
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + " ..."
	}
	return text
}

// Loads implements agentapi.Server.
func (a *agents) Loads(host string, m fleet.Loads) (agentapi.LoadsAnswer, error) {
	if err := validLoads(&m); err != nil {
		return agentapi.LoadsAnswer{}, fleetapi.NewProblem(fleetapi.ProblemInvalid, err.Error())
	}
	if a.loads.take(host, &m) {
		return agentapi.LoadsAnswer{Full: true}, nil
	}
	a.sched.noteLoads(host)
	a.record(context.Background(), host, m.Taken)
	return agentapi.LoadsAnswer{}, nil
}

// Status implements agentapi.Server. A host may only report a VM that it has, gets, or must remove.
func (a *agents) Status(host string, m fleet.VMStatus) error {
	if m.Host != host {
		return fleetapi.NewProblem(fleetapi.ProblemRole, "host: a daemon may only report for its own host")
	}
	if len(m.Message) > 4000 {
		m.Message = cut(m.Message)
	}
	stored, err := a.decide(context.Background(), func(st *state, t *transaction) error {
		if left, ok := st.remains[onHost{m.Name, host}]; ok && !st.on[host][m.Name] {
			if m.Phase != fleet.PhaseGone || m.Generation < left.value.Generation {
				return errNothing
			}
			t.require(remainsKey(host, m.Name), left.revision)
			t.remove(remainsKey(host, m.Name))
			return nil
		}
		if !st.on[host][m.Name] {
			if m.Phase == fleet.PhaseGone || m.Migration != nil {
				return errNothing // it is right: the record has moved on
			}
			return fleetapi.NewProblem(fleetapi.ProblemNotFound, "VM "+m.Name+" is not a VM of host "+host)
		}
		vm := st.vmOf(m.Name)
		key := statusKey(m.Name, host)
		at := orZero(st.statusOf(m.Name, host))
		if report, ok := st.reports[host]; ok {
			t := &report.Inventory.Topology
			for _, r := range m.Placement.Reservations {
				if _, has := t.Node(r.Node); !has {
					return fleetapi.NewProblem(fleetapi.ProblemInvalid,
						fmt.Sprintf("placement: host %s reports no node %d", host, r.Node))
				}
			}
		}
		if m.Generation > vm.value.Generation {
			return fleetapi.NewProblem(fleetapi.ProblemInvalid, "generation: the VM has no such generation yet")
		}
		if at.revision != 0 && same(at.value, m) {
			return errNothing
		}
		if at.revision != 0 && delayed(&m, &at.value, vm.value.Generation) {
			return errNothing
		}
		t.require(store.VMs+m.Name, vm.revision) // it is a VM of this host still
		t.require(key, at.revision)
		t.put(key, m)
		return nil
	})
	a.Log.Debug("a host reports a VM", "host", host, "vm", m.Name, "phase", m.Phase, "generation", m.Generation,
		"sequence", m.Sequence, "stored_at_revision", stored, "error", err)
	return err
}

// delayed reports whether a status was sent before the stored one of the same VM and host. generation is
// the VM's: a stored status of a later one is about an earlier VM of the name.
func delayed(m, stored *fleet.VMStatus, generation int64) bool {
	if stored.Generation > generation {
		return false
	}
	if m.Generation == stored.Generation && m.Sequence > 0 {
		return m.Sequence < stored.Sequence
	}
	return m.Generation < stored.Generation
}

// wholeEvery is how often a host gets its whole desired state although nothing has changed.
const wholeEvery = time.Minute

// repeats says which messages of a stream are whole. The zero value: the desired state has changed. The message
// after the next one is whole too: the first one may have the revision of the state before the change, and hosts
// ignore what has no new revision.
type repeats struct {
	sent  time.Time // the last whole message
	twice bool
}

// whole reports whether the next message is whole, and takes it as sent.
func (r *repeats) whole(now time.Time) bool {
	if !r.sent.IsZero() && r.twice && now.Sub(r.sent) < wholeEvery {
		return false
	}
	r.sent, r.twice = now, !r.sent.IsZero()
	return true
}

// streamDesired sends a host what it should have, whenever that changes, until the host is gone. Meanwhile heartbeats
// have the last message's revision and no VMs: to encode those of thousands of hosts takes a part of a CPU.
func (a *agents) streamDesired(w http.ResponseWriter, r *http.Request) {
	host, err := a.peer(r)
	if err != nil {
		refuse(w, err)
		return
	}
	// The host may have heard newer things from another server, and must not act on older ones.
	if err := a.confirm(r.Context()); err != nil {
		refuse(w, err)
		return
	}
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	var desired fleet.Desired
	var changed <-chan struct{}
	for due := (repeats{}); ; {
		known, whole := false, due.whole(time.Now())
		a.cache.read(func(st *state) {
			if _, known = st.hosts[host]; whole { // else the last message still holds, and the channel
				desired, changed = desiredOf(st, host), a.wanted.of(host)
			} else {
				desired = fleet.Desired{Revision: desired.Revision, VMs: []fleet.VM{}, Servers: st.addresses()}
			}
		})
		if !known {
			return // it was removed: the next request says so
		}
		if a.alive.isolated() {
			return // another server may know more: the host tries those
		}
		_ = out.SetWriteDeadline(time.Now().Add(writeTime)) // tests have connections without
		if json.NewEncoder(w).Encode(desired) != nil || out.Flush() != nil {
			return
		}
		_ = out.SetWriteDeadline(time.Time{}) // else it ends the stream between two messages
		beat := time.NewTimer(a.heartbeat)
		select {
		case <-changed:
			due = repeats{}
		case <-beat.C:
		case <-a.stopped:
			beat.Stop()
			return
		case <-r.Context().Done():
			beat.Stop()
			return
		}
		beat.Stop()
	}
}
