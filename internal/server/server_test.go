package server

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	agentapi "github.com/numavisor/numavisor/internal/api/agent"
	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/decide/migrate"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/server/auth"
	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/memory"
	"github.com/numavisor/numavisor/internal/topology"
)

// rig is a server on a store in memory, as users and daemons reach it.
type rig struct {
	t      testing.TB
	server *Server
	store  store.Store
	url    string
	ca     *auth.CA
	admin  *fleetapi.Client
	token  string // of admin
	setup  setup
}

// setup is what tests observe and change of a server.
type setup struct {
	log    lockedBuffer
	offset atomic.Int64 // of the server's clock, nanoseconds
	series Telemetry
	policy policy.Policy
	limits migrate.Limits
	plans  time.Duration // PlanEvery
	beats  time.Duration // between messages to hosts; 0: the default

	deadlines Deadlines
}

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// newRig starts a server.
func newRig(t testing.TB) *rig {
	t.Helper()
	return newRigWith(t, nil)
}

// newRigWith starts a server with a place for time series.
func newRigWith(t testing.TB, series Telemetry) *rig {
	t.Helper()
	r := newUnstartedRig(t)
	r.setup.series = series
	r.start()
	return r
}

func newUnstartedRig(t testing.TB) *rig { //nolint:thelper // nothing fails here
	return &rig{t: t, store: memory.New(memory.Options{})}
}

// start starts the server of a rig.
func (r *rig) start() {
	t := r.t
	t.Helper()
	ca, err := auth.NewCA("fleet", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	token, err := FirstAdmin(t.Context(), r.store, time.Now())
	if err != nil || token == "" {
		t.Fatal(token, err)
	}
	r.ca = ca
	r.server, r.url = startServer(t, r.store, ca, &r.setup)
	r.admin, r.token = r.client(token), token
}

// startServer starts a server on a store.
func startServer(t testing.TB, s store.Store, ca *auth.CA, set *setup) (*Server, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	out := New(Options{Store: s, CA: ca, Log: slog.New(slog.NewTextHandler(&set.log, nil)), Version: "test",
		Telemetry: set.series, Address: l.Addr().String(), Names: []string{"127.0.0.1"}, Policy: set.policy,
		Limits: set.limits, PlanEvery: set.plans, Deadlines: set.deadlines,
		Now: func() time.Time { return time.Now().Add(time.Duration(set.offset.Load())) }})
	out.heartbeat = cmp.Or(set.beats, out.heartbeat)
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 2)
	go func() { out.Run(ctx, func() { close(ready) }); ended <- nil }()
	<-ready
	go func() { ended <- out.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
	return out, "https://" + l.Addr().String()
}

// client returns a client with a token.
func (r *rig) client(token string) *fleetapi.Client {
	r.t.Helper()
	c, err := fleetapi.NewClient(fleetapi.Config{URL: r.url, Token: token, CA: r.ca.CertificatePEM()})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(c.Close)
	return c
}

// fakeHost is a daemon that does at once what the server wants.
type fakeHost struct {
	t    testing.TB
	name string
	url  string
	http *http.Client
	inv  inventory.Host
}

// anonymous returns an HTTP client without a certificate.
func (r *rig) anonymous() *http.Client {
	t := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: r.ca.Pool(),
		MinVersion: tls.VersionTLS13}}
	r.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t}
}

func csrOf(t testing.TB) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), key
}

// join lets a host of a shape join, and reports it.
func (r *rig) join(name, machine string) *fakeHost {
	r.t.Helper()
	made, err := r.admin.CreateJoin(r.t.Context(), fleetapi.JoinCreate{})
	if err != nil {
		r.t.Fatal(err)
	}
	csr, key := csrOf(r.t)
	h := &fakeHost{t: r.t, name: name, url: r.url, http: r.anonymous()}
	var joined agentapi.Joined
	h.send("POST", "/agent/v1/join", agentapi.Join{Token: made.Token, Host: name, ID: "id-" + name, CSR: string(csr)},
		&joined)
	block, _ := pem.Decode([]byte(joined.Certificate))
	if block == nil {
		r.t.Fatal("joining gave no certificate")
		return nil
	}
	h.http.Transport.(*http.Transport).TLSClientConfig.Certificates = []tls.Certificate{
		{Certificate: [][]byte{block.Bytes}, PrivateKey: key}}
	h.http.CloseIdleConnections()
	topo, err := topology.Synthetic(machine)
	if err != nil {
		r.t.Fatal(err)
	}
	h.inv = inventory.Host{Version: inventory.Version, Name: name, ID: "id-" + name, Topology: topo}
	h.report()
	r.eventually("host "+name+" is reachable", func() bool {
		shown, err := r.admin.Host(r.t.Context(), name)
		return err == nil && shown.State == fleetapi.HostReachable && shown.Nodes > 0
	})
	return h
}

func (r *rig) eventually(what string, f func() bool) {
	r.t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if f() {
			return
		}
	}
	r.t.Fatalf("not in time: %s", what)
}

func (h *fakeHost) report() {
	h.t.Helper()
	h.send("PUT", "/agent/v1/report", fleet.Report{Taken: time.Now(), Program: "test", Protocol: agentapi.Protocol,
		Inventory: h.inv}, nil)
}

// send sends a message that must succeed.
func (h *fakeHost) send(method, path string, message, into any) {
	h.t.Helper()
	if p := h.try(method, path, message, into); p != nil {
		h.t.Fatalf("%s %s: %d %v", method, path, p.Status, p)
	}
}

// try sends a message, and returns the problem that answers it.
func (h *fakeHost) try(method, path string, message, into any) *fleetapi.Problem {
	h.t.Helper()
	data, err := json.Marshal(message)
	if err != nil {
		h.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(h.t.Context(), method, h.url+path, bytes.NewReader(data))
	if err != nil {
		h.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := h.http.Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK {
		p := &fleetapi.Problem{}
		if err := json.Unmarshal(body, p); err != nil || p.Status != answer.StatusCode {
			h.t.Fatalf("%s %s answers %s without a problem document: %s", method, path, answer.Status, body)
		}
		return p
	}
	if into != nil {
		if err := json.Unmarshal(body, into); err != nil {
			h.t.Fatal(err)
		}
	}
	return nil
}

// follow carries out each desired state until the test ends: f says what to report of a VM.
func (h *fakeHost) follow(f func(vm fleet.VM) *fleet.VMStatus) {
	h.t.Helper()
	r, err := http.NewRequestWithContext(h.t.Context(), http.MethodGet, h.url+"/agent/v1/desired", http.NoBody)
	if err != nil {
		h.t.Fatal(err)
	}
	answer, err := h.http.Do(r) //nolint:bodyclose // the end of the test closes it
	if err != nil {
		h.t.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK {
		h.t.Fatal(answer.Status)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(answer.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var d fleet.Desired
			if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
				if h.t.Context().Err() == nil { // else the end of the test has cut it off
					h.t.Error(err)
				}
				return
			}
			for _, vm := range d.VMs {
				if s := f(vm); s != nil {
					s.Name, s.Host, s.Generation = vm.Name, h.name, vm.Generation
					h.tryQuietly("PUT", "/agent/v1/vms/"+vm.Name+"/status", s)
				}
			}
		}
	}()
	h.t.Cleanup(func() { _ = answer.Body.Close(); <-done })
}

func (h *fakeHost) tryQuietly(method, path string, message any) {
	data, err := json.Marshal(message)
	if err != nil {
		h.t.Error(err)
		return
	}
	r, err := http.NewRequestWithContext(context.Background(), method, h.url+path, bytes.NewReader(data))
	if err != nil {
		h.t.Error(err)
		return
	}
	r.Header.Set("Content-Type", "application/json")
	if answer, err := h.http.Do(r); err == nil {
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
	}
}

// obey reports what a good daemon does.
func obey(vm fleet.VM) *fleet.VMStatus {
	switch {
	case vm.Delete:
		return &fleet.VMStatus{Phase: fleet.PhaseGone}
	case vm.Run == fleet.Stopped:
		return &fleet.VMStatus{Phase: fleet.PhaseStopped}
	}
	return &fleet.VMStatus{Phase: fleet.PhaseRunning}
}

func vmOf(name string, vcpus int, memory topology.Bytes) fleetapi.VMCreate {
	return fleetapi.VMCreate{Project: "default", Spec: guest.Spec{Name: name, VCPUs: vcpus, Memory: memory}}
}

func problemType(err error) fleetapi.ProblemType {
	var p *fleetapi.Problem
	if errors.As(err, &p) {
		return p.Type
	}
	return ""
}

// A VM of a user of all projects belongs to the fleet's default project, unless the request names another one.
func TestCreate_WithoutAProject(t *testing.T) {
	r := newRig(t)
	wanted := vmOf("web", 1, topology.GiB)
	wanted.Project = ""
	made, err := r.admin.CreateVM(t.Context(), wanted, fleetapi.Change{})
	if err != nil || made.Project != fleetapi.DefaultProject {
		t.Fatalf("project %q, %v", made.Project, err)
	}
}

// So does a VM that such a user adopts.
func TestAdopt_WithoutAProject(t *testing.T) {
	r := newRig(t)
	a := r.join("a", "nodes:2 cores:4 memory:8G")
	at := r.dryRun(vmOf("web", 1, topology.GiB))
	a.inv.Guests = append(a.inv.Guests, inventory.Guest{Name: "web", State: "running", Managed: true,
		Spec: &at.Spec, Placement: &at.Placement, Config: inventory.Config{VCPUs: 1, Memory: topology.GiB}})
	a.report()
	made, err := r.admin.AdoptVM(t.Context(), fleetapi.VMAdopt{Host: "a", Name: "web"}, fleetapi.Change{})
	if err != nil || made.Project != fleetapi.DefaultProject {
		t.Fatalf("project %q, %v", made.Project, err)
	}
}

func TestServer_LifeOfAVM(t *testing.T) {
	r := newRig(t)
	pending, err := r.admin.CreateVM(t.Context(), vmOf("early", 1, topology.GiB), fleetapi.Change{})
	if err != nil || pending.State != fleetapi.VMPending || pending.Pending == "" {
		t.Fatalf("got %+v, %v", pending, err)
	}
	r.join("h1", "nodes:2 cores:4 memory:8G").follow(obey)
	dry, err := r.admin.CreateVM(t.Context(), vmOf("vm", 2, topology.GiB), fleetapi.Change{DryRun: true})
	if err != nil || dry.Host != "h1" || dry.Why == nil || dry.Revision != 0 {
		t.Fatalf("dry run: got %+v, %v", dry, err)
	}
	if _, err := r.admin.VM(t.Context(), "vm"); problemType(err) != fleetapi.ProblemNotFound {
		t.Fatalf("the dry run made a VM: %v", err)
	}
	made, err := r.admin.CreateVM(t.Context(), vmOf("vm", 2, topology.GiB), fleetapi.Change{})
	if err != nil || made.Host != "h1" || made.Why == nil || made.Revision == 0 || made.Placement.Nodes.Len() != 1 {
		t.Fatalf("got %+v, %v", made, err)
	}
	for _, name := range []string{"vm", "early"} {
		r.eventually(name+" runs", func() bool {
			vm, err := r.admin.VM(t.Context(), name)
			return err == nil && vm.State == fleetapi.VMRunning && vm.Why != nil
		})
	}
	if _, err := r.admin.StopVM(t.Context(), "vm", fleetapi.Change{Revision: made.Revision}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.admin.StartVM(t.Context(), "vm",
		fleetapi.Change{Revision: made.Revision}); problemType(err) != fleetapi.ProblemChanged {
		t.Errorf("an old revision: got %v", err)
	}
	r.eventually("vm is stopped", func() bool {
		vm, err := r.admin.VM(t.Context(), "vm")
		return err == nil && vm.State == fleetapi.VMStopped
	})
	if vm, err := r.admin.ResizeVM(t.Context(), "vm", fleetapi.VMResize{VCPUs: 4}, fleetapi.Change{}); err != nil ||
		len(vm.Placement.VCPUs) != 4 {
		t.Errorf("got %+v, %v", vm.Placement, err)
	}
	if _, err := r.admin.BindVM(t.Context(), "vm", fleetapi.Change{}); err != nil {
		t.Error(err)
	}
	if _, err := r.admin.DeleteVM(t.Context(), "vm", fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("vm is gone", func() bool {
		_, err := r.admin.VM(t.Context(), "vm")
		return problemType(err) == fleetapi.ProblemNotFound
	})
	projects, err := r.admin.Projects(t.Context())
	if err != nil || len(projects.Projects) != 1 || projects.Projects[0].Used.VMs != 1 {
		t.Errorf("got %+v, %v", projects, err)
	}
	audit, err := r.admin.Audit(t.Context(), 100, "")
	if err != nil || len(audit.Entries) < 5 || audit.Entries[0].Operation != "delete-vm" ||
		audit.Entries[0].User != "admin" {
		t.Errorf("audit: got %+v, %v", audit, err)
	}
}

// reports is the status by which a host reports its part of a migration.
func reports(vm fleet.VM, phase fleet.MigrationPhase, a *fleet.Arrival) *fleet.VMStatus {
	return &fleet.VMStatus{Phase: fleet.PhaseRunning, Migration: &fleet.MigrationStatus{Began: vm.Migration.Began,
		Phase: phase, Arrival: a}}
}

// leaves is a source from which a VM is gone as soon as the target is ready.
func leaves(vm fleet.VM) *fleet.VMStatus {
	if vm.Migration != nil && vm.Migration.Ready != nil {
		return reports(vm, fleet.MigrationGone, nil)
	}
	return obey(vm)
}

func TestServer_MigratesInTheStepsOfTheProtocol(t *testing.T) {
	r := newRig(t)
	r.join("a", "nodes:2 cores:4 memory:8G").follow(leaves)
	made, err := r.admin.CreateVM(t.Context(), vmOf("vm", 2, topology.GiB), fleetapi.Change{})
	if err != nil || made.Host != "a" {
		t.Fatalf("got %+v, %v", made, err)
	}
	r.join("b", "nodes:2 cores:4 memory:8G").follow(func(vm fleet.VM) *fleet.VMStatus {
		switch {
		case vm.Migration == nil:
			return obey(vm)
		case vm.Migration.Ready == nil:
			return reports(vm, fleet.MigrationPrepared, &fleet.Arrival{URI: "qemu+tls://b/system"})
		}
		return reports(vm, fleet.MigrationArrived, nil)
	})
	if _, err := r.admin.Drain(t.Context(), "a", fleet.MigrationOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("vm is on b", func() bool {
		vm, err := r.admin.VM(t.Context(), "vm")
		return err == nil && vm.Host == "b" && vm.Migration == nil && vm.State == fleetapi.VMRunning
	})
	if err := r.admin.RemoveHost(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}

func TestServer_SilentHostIsNeverReplacedUnlessDeclaredDead(t *testing.T) {
	r := newRig(t)
	a := r.join("a", "nodes:2 cores:4 memory:8G")
	if _, err := r.admin.CreateVM(t.Context(), vmOf("vm", 2, topology.GiB), fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	r.join("b", "nodes:2 cores:4 memory:8G").follow(obey)
	if _, err := r.admin.DeclareDead(t.Context(), "a", "test"); problemType(err) != fleetapi.ProblemConflict {
		t.Fatalf("a reachable host: got %v", err)
	}
	r.silence("a")
	r.eventually("vm is unknown", func() bool {
		vm, err := r.admin.VM(t.Context(), "vm")
		return err == nil && vm.State == fleetapi.VMUnknown && vm.Host == "a"
	})
	if _, err := r.admin.DeclareDead(t.Context(), "a", "the power supply burned"); err != nil {
		t.Fatal(err)
	}
	r.eventually("vm runs on b", func() bool {
		vm, err := r.admin.VM(t.Context(), "vm")
		return err == nil && vm.State == fleetapi.VMRunning && vm.Host == "b"
	})
	a.report() // it is back
	if _, err := r.admin.DeclareAlive(t.Context(), "a"); problemType(err) != fleetapi.ProblemConflict {
		t.Fatalf("a host that has its former VM: got %v", err)
	}
	a.follow(obey)
	r.eventually("a has removed the VM", func() bool {
		_, err := r.admin.DeclareAlive(t.Context(), "a")
		return err == nil
	})
	if vm, err := r.admin.VM(t.Context(), "vm"); err != nil || vm.Host != "b" || vm.State != fleetapi.VMRunning {
		t.Errorf("got %+v, %v", vm, err)
	}
}

// A VM that has arrived on a host that is then declared dead starts again on its former host. The dead host removes its
// copy when it is back.
func TestServer_TheTargetOfAMigrationIsDeclaredDead(t *testing.T) {
	r := newRig(t)
	r.join("a", "nodes:2 cores:4 memory:8G").follow(leaves)
	if _, err := r.admin.CreateVM(t.Context(), vmOf("vm", 2, topology.GiB), fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	var removes atomic.Bool
	r.join("b", "nodes:2 cores:4 memory:8G").follow(func(vm fleet.VM) *fleet.VMStatus {
		switch {
		case vm.Migration == nil:
			removes.Store(vm.Delete)
			return obey(vm)
		case vm.Migration.Ready == nil:
			return reports(vm, fleet.MigrationPrepared, &fleet.Arrival{URI: "qemu+tls://b/system"})
		}
		return nil // the VM has arrived, and the server does not hear of it
	})
	if _, err := r.admin.MigrateVM(t.Context(), "vm", fleetapi.VMMigrate{To: "b"}, fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("vm has left a", func() bool {
		vm, err := r.admin.VM(t.Context(), "vm")
		return err == nil && vm.Migration != nil && vm.Migration.Cancel != ""
	})
	r.silence("b")
	r.eventually("b is declared dead", func() bool {
		_, err := r.admin.DeclareDead(t.Context(), "b", "the power supply burned")
		return err == nil
	})
	r.eventually("vm runs on a", func() bool {
		vm, err := r.admin.VM(t.Context(), "vm")
		return err == nil && vm.Host == "a" && vm.Migration == nil && vm.State == fleetapi.VMRunning
	})
	r.eventually("b is back, and has removed its copy", func() bool {
		_, err := r.admin.DeclareAlive(t.Context(), "b")
		return err == nil && removes.Load()
	})
}

// A source that is declared dead while its VM arrives elsewhere may have a paused copy. It must not resume it, so the
// record that it gets names the other host; it is used again once it has removed the copy.
func TestServer_TheSourceOfAMigrationIsDeclaredDead(t *testing.T) {
	r := newRig(t)
	var dead, back, removes atomic.Bool
	a := r.join("a", "nodes:2 cores:4 memory:8G")
	obeys := func(vm fleet.VM) *fleet.VMStatus {
		switch {
		case vm.Migration != nil, dead.Load() && !back.Load():
			return nil
		case vm.Host == "b":
			return &fleet.VMStatus{Phase: fleet.PhaseGone}
		}
		removes.Store(vm.Delete || dead.Load()) // as one of its own
		return obey(vm)
	}
	a.follow(obeys)
	if _, err := r.admin.CreateVM(t.Context(), vmOf("vm", 2, topology.GiB), fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	r.join("b", "nodes:2 cores:4 memory:8G").follow(func(vm fleet.VM) *fleet.VMStatus {
		switch {
		case vm.Migration == nil:
			return obey(vm)
		case vm.Migration.Cancel != "" && dead.Load():
			return reports(vm, fleet.MigrationArrived, nil)
		}
		return reports(vm, fleet.MigrationPrepared, &fleet.Arrival{URI: "qemu+tls://b/system"})
	})
	if _, err := r.admin.MigrateVM(t.Context(), "vm", fleetapi.VMMigrate{To: "b"}, fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("b is ready", func() bool {
		vm, err := r.admin.VM(t.Context(), "vm")
		return err == nil && vm.Migration != nil && vm.Migration.Ready != nil
	})
	r.silence("a")
	dead.Store(true)
	r.eventually("a is declared dead", func() bool {
		_, err := r.admin.DeclareDead(t.Context(), "a", "the power supply burned")
		return err == nil
	})
	r.eventually("vm runs on b", func() bool {
		vm, err := r.admin.VM(t.Context(), "vm")
		return err == nil && vm.Host == "b" && vm.Migration == nil && vm.State == fleetapi.VMRunning
	})
	h, err := r.admin.Host(t.Context(), "a")
	if err != nil || !slices.Equal(h.Remaining, []string{"vm"}) {
		t.Errorf("a is to remove %v; %v", h.Remaining, err)
	}
	back.Store(true)
	a.follow(obeys)
	r.eventually("a is back", func() bool {
		_, err := r.admin.DeclareAlive(t.Context(), "a")
		return err == nil
	})
	if removes.Load() {
		t.Error("a got the record of a VM of its own")
	}
}

// A source that does not know whether its VM runs on the target learns where the VM is until it has no copy of it, also
// when the VM has been deleted meanwhile. One that has said that nothing is left gets no such record.
func TestServer_ASourceLearnsWhereItsVMIs(t *testing.T) {
	for _, phase := range []fleet.MigrationPhase{fleet.MigrationUndecided, fleet.MigrationGone} {
		r := newRig(t)
		var names, settled atomic.Bool
		a := r.join("a", "nodes:2 cores:4 memory:8G")
		obeys := func(vm fleet.VM) *fleet.VMStatus {
			switch {
			case vm.Migration != nil && vm.Migration.Ready != nil:
				return reports(vm, phase, nil)
			case vm.Host != "b":
				return obey(vm)
			case vm.Migration == nil:
				names.Store(!vm.Delete)
				if settled.Load() {
					return &fleet.VMStatus{Phase: fleet.PhaseGone}
				}
			}
			return nil
		}
		a.follow(obeys)
		if _, err := r.admin.CreateVM(t.Context(), vmOf("vm", 2, topology.GiB), fleetapi.Change{}); err != nil {
			t.Fatal(err)
		}
		r.join("b", "nodes:2 cores:4 memory:8G").follow(func(vm fleet.VM) *fleet.VMStatus {
			switch {
			case vm.Migration == nil:
				return obey(vm)
			case vm.Migration.Cancel != "": // the source has said what it knows
				return reports(vm, fleet.MigrationArrived, nil)
			}
			return reports(vm, fleet.MigrationPrepared, &fleet.Arrival{URI: "qemu+tls://b/system"})
		})
		if _, err := r.admin.MigrateVM(t.Context(), "vm", fleetapi.VMMigrate{To: "b"}, fleetapi.Change{}); err != nil {
			t.Fatal(err)
		}
		r.eventually("vm is on b", func() bool {
			vm, err := r.admin.VM(t.Context(), "vm")
			return err == nil && vm.Host == "b" && vm.Migration == nil
		})
		if _, err := r.admin.DeleteVM(t.Context(), "vm", fleetapi.Change{}); err != nil {
			t.Fatal(err)
		}
		r.eventually("vm is deleted", func() bool {
			_, err := r.admin.VM(t.Context(), "vm")
			return problemType(err) == fleetapi.ProblemNotFound
		})
		remaining := func() []string {
			h, err := r.admin.Host(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			return h.Remaining
		}
		if phase == fleet.MigrationGone {
			if left := remaining(); len(left) > 0 || names.Load() {
				t.Errorf("a has said that vm is gone, and is to remove %v, was named: %v", left, names.Load())
			}
			continue
		}
		if left := remaining(); !slices.Equal(left, []string{"vm"}) {
			t.Errorf("a is to remove %v", left)
		}
		r.eventually("a knows that vm is on b", names.Load)
		settled.Store(true)
		a.follow(obeys)
		r.eventually("nothing is left on a", func() bool { return len(remaining()) == 0 })
	}
}

// silence makes the server believe that a host has said nothing for long.
func (r *rig) silence(host string) {
	r.server.alive.mu.Lock()
	defer r.server.alive.mu.Unlock()
	r.server.alive.heard[host] = time.Now().Add(-2 * silence)
}

func TestCreate_WithAnIdempotencyKeyIsMadeOnce(t *testing.T) {
	r := newRig(t)
	r.join("a", "nodes:2 cores:4 memory:8G")
	how := fleetapi.Change{Key: "k1"}
	first, err := r.admin.CreateVM(t.Context(), vmOf("vm", 2, topology.GiB), how)
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.admin.CreateVM(t.Context(), vmOf("vm", 2, topology.GiB), how)
	if err != nil || again.Revision != first.Revision {
		t.Errorf("got %+v, %v", again, err)
	}
	if _, err := r.admin.CreateVM(t.Context(), vmOf("other", 2, topology.GiB),
		how); problemType(err) != fleetapi.ProblemInvalid {
		t.Errorf("the key of another request: got %v", err)
	}
	if _, err := r.admin.CreateVM(t.Context(), vmOf("vm", 2, topology.GiB),
		fleetapi.Change{}); problemType(err) != fleetapi.ProblemExists {
		t.Errorf("without a key: got %v", err)
	}
}

func TestQuota_IsNeverExceeded(t *testing.T) {
	r := newRig(t)
	r.join("a", "nodes:2 cores:8 memory:64G")
	if _, err := r.admin.PutProject(t.Context(), "default",
		fleetapi.ProjectEdit{Quota: fleetapi.Quota{VCPUs: 5}}); err != nil {
		t.Fatal(err)
	}
	errs := make(chan error)
	for i := range 8 {
		go func() {
			_, err := r.admin.CreateVM(t.Context(), vmOf(fmt.Sprint("vm", i), 1, topology.GiB), fleetapi.Change{})
			errs <- err
		}()
	}
	made := 0
	for range 8 {
		switch err := <-errs; {
		case err == nil:
			made++
		case problemType(err) != fleetapi.ProblemQuota || !strings.Contains(err.Error(), "5"):
			t.Error(err)
		}
	}
	if made != 5 {
		t.Errorf("%d VMs were made, the quota is 5", made)
	}
}
