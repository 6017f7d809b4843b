package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	agentapi "github.com/numavisor/numavisor/internal/api/agent"
	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestJoin_ATokenWorksOnce(t *testing.T) {
	r := newRig(t)
	a := r.join("a", "nodes:1 cores:2 memory:4G")
	csr, _ := csrOf(t)
	outside := &fakeHost{t: t, url: r.url, http: r.anonymous()}
	try := func(token, host, id string) *fleetapi.Problem {
		return outside.try("POST", "/agent/v1/join", agentapi.Join{Token: token, Host: host, ID: id,
			CSR: string(csr)}, nil)
	}
	token := func(minutes int) string {
		made, err := r.admin.CreateJoin(t.Context(), fleetapi.JoinCreate{Minutes: minutes})
		if err != nil {
			t.Fatal(err)
		}
		return made.Token
	}
	first := token(60)
	if p := try(first, "b", "id-b"); p != nil {
		t.Fatal(p)
	}
	if p := try(first, "c", "id-c"); p == nil || p.Type != fleetapi.ProblemRole {
		t.Errorf("the second use: got %v", p)
	}
	if p := try(token(60), "a", "another machine"); p == nil || p.Type != fleetapi.ProblemExists {
		t.Errorf("the name of another machine: got %v", p)
	}
	if p := try(token(60), "a", "id-a"); p != nil {
		t.Errorf("the same machine again: got %v", p)
	}
	old := token(1)
	r.setup.offset.Store(int64(time.Hour))
	if p := try(old, "d", "id-d"); p == nil || p.Type != fleetapi.ProblemRole {
		t.Errorf("an expired token: got %v", p)
	}
	r.setup.offset.Store(0)
	for _, host := range []string{"", "a/b", "a b", strings.Repeat("x", 300)} {
		if p := try(token(60), host, ""); p == nil || p.Type != fleetapi.ProblemInvalid {
			t.Errorf("host %.20q: got %v", host, p)
		}
	}
	if p := try("", "e", ""); p == nil || p.Type != fleetapi.ProblemRole {
		t.Errorf("no token: got %v", p)
	}
	var renewed agentapi.Joined
	a.send("POST", "/agent/v1/renew", agentapi.Renew{CSR: string(csr)}, &renewed)
	if renewed.Certificate == "" {
		t.Error("no new certificate")
	}
}

func TestDaemon_WritesOnlyItsOwnRecords(t *testing.T) {
	r := newRig(t)
	a := r.join("a", "nodes:2 cores:4 memory:8G")
	made, err := r.admin.CreateVM(t.Context(), vmOf("vm", 2, topology.GiB), fleetapi.Change{})
	if err != nil || made.Host != "a" {
		t.Fatal(made, err)
	}
	b := r.join("b", "nodes:2 cores:4 memory:8G")
	status := func(host string) fleet.VMStatus {
		return fleet.VMStatus{Name: "vm", Host: host, Generation: 1, Phase: fleet.PhaseRunning}
	}
	for what, p := range map[string]*fleetapi.Problem{
		"another host's VM":      b.try("PUT", "/agent/v1/vms/vm/status", status("b"), nil),
		"in another host's name": b.try("PUT", "/agent/v1/vms/vm/status", status("a"), nil),
		"of another VM":          a.try("PUT", "/agent/v1/vms/other/status", status("a"), nil),
		"of the future": a.try("PUT", "/agent/v1/vms/vm/status",
			fleet.VMStatus{Name: "vm", Host: "a", Generation: 99, Phase: fleet.PhaseRunning}, nil),
		"about another machine": b.try("PUT", "/agent/v1/report",
			fleet.Report{Protocol: agentapi.Protocol, Inventory: inventory.Host{Version: 1, ID: "id-a",
				Topology: b.inv.Topology}}, nil),
		"of an old protocol":  b.try("PUT", "/agent/v1/report", fleet.Report{Protocol: -1, Inventory: b.inv}, nil),
		"of a later protocol": b.try("PUT", "/agent/v1/report", fleet.Report{Protocol: 99, Inventory: b.inv}, nil),
		"impossible loads": b.try("POST", "/agent/v1/loads", fleet.Loads{Number: 1,
			Nodes: []fleet.Node{{NodeLoad: inventory.NodeLoad{CPU: -1}}}}, nil),
		"without a message": b.try("POST", "/agent/v1/loads", nil, nil),
	} {
		if p == nil {
			t.Errorf("%s: accepted", what)
		}
	}
	a.send("PUT", "/agent/v1/vms/vm/status", status("a"), nil)
	a.send("PUT", "/agent/v1/vms/vm/status", status("a"), nil) // repeated
	outside := &fakeHost{t: t, url: r.url, http: r.anonymous()}
	if p := outside.try("PUT", "/agent/v1/report", fleet.Report{}, nil); p == nil ||
		p.Status != http.StatusUnauthorized {
		t.Errorf("without a certificate: got %v", p)
	}
	if _, err := r.admin.DeleteVM(t.Context(), "vm", fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	if err := r.admin.RemoveHost(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if p := b.try("POST", "/agent/v1/loads", fleet.Loads{Number: 1}, nil); p == nil || p.Type != fleetapi.ProblemRole {
		t.Errorf("a host that was removed: got %v", p)
	}
}

// A network may delay a report until the next one has arrived, and repeat both.
func TestStatus_AnEarlierReportReplacesNoLaterOne(t *testing.T) {
	r := newRig(t)
	a := r.join("a", "nodes:2 cores:4 memory:8G")
	made, err := r.admin.CreateVM(t.Context(), vmOf("vm", 2, topology.GiB), fleetapi.Change{})
	if err != nil {
		t.Fatal(err)
	}
	running := fleet.VMStatus{Name: "vm", Host: "a", Generation: made.Generation, Phase: fleet.PhaseRunning}
	a.send("PUT", "/agent/v1/vms/vm/status", running, nil)
	changed, err := r.admin.StopVM(t.Context(), "vm", fleetapi.Change{})
	if err != nil {
		t.Fatal(err)
	}
	stopped := fleet.VMStatus{Name: "vm", Host: "a", Generation: changed.Generation, Phase: fleet.PhaseStopped}
	a.send("PUT", "/agent/v1/vms/vm/status", stopped, nil)
	a.send("PUT", "/agent/v1/vms/vm/status", running, nil) // late
	a.send("PUT", "/agent/v1/vms/vm/status", stopped, nil) // repeated
	a.send("PUT", "/agent/v1/vms/vm/status", running, nil)
	shown, err := r.admin.VM(t.Context(), "vm")
	if err != nil || shown.State != fleetapi.VMStopped || shown.Status.Generation != changed.Generation {
		t.Errorf("got %s, %+v, %v", shown.State, shown.Status, err)
	}
}

// The statuses of one generation are in order by their numbers, also where a message is repeated.
func TestStatus_AnEarlierNumberReplacesNoLaterOne(t *testing.T) {
	r := newRig(t)
	a := r.join("a", "nodes:2 cores:4 memory:8G")
	made, err := r.admin.CreateVM(t.Context(), vmOf("vm", 2, topology.GiB), fleetapi.Change{})
	if err != nil {
		t.Fatal(err)
	}
	send := func(phase fleet.Phase, sequence int64) {
		t.Helper()
		a.send("PUT", "/agent/v1/vms/vm/status", fleet.VMStatus{Name: "vm", Host: "a", Generation: made.Generation,
			Phase: phase, Sequence: sequence}, nil)
	}
	shows := func(want fleet.Phase) {
		t.Helper()
		shown, err := r.admin.VM(t.Context(), "vm")
		if err != nil || shown.Status == nil || shown.Status.Phase != want {
			t.Errorf("%s is expected, got %+v, %v", want, shown.Status, err)
		}
	}
	send(fleet.PhaseWorking, 7)
	send(fleet.PhaseRunning, 8)
	send(fleet.PhaseWorking, 7) // repeated
	shows(fleet.PhaseRunning)
	send(fleet.PhaseFailed, 9)
	send(fleet.PhaseRunning, 8)
	shows(fleet.PhaseFailed)
	send(fleet.PhaseRunning, 0) // of an older daemon, after a downgrade
	shows(fleet.PhaseRunning)
}

func TestLoads_OnlyWhatChanged(t *testing.T) {
	r := newRig(t)
	a := r.join("a", "nodes:2 cores:4 memory:8G")
	load := func(node topology.NodeID, cpu float64) fleet.Node {
		return fleet.Node{NodeLoad: inventory.NodeLoad{Node: node, CPU: cpu}, Free: topology.GiB}
	}
	var answer agentapi.LoadsAnswer
	a.send("POST", "/agent/v1/loads", fleet.Loads{Number: 2, Since: 1, Nodes: []fleet.Node{load(0, 1)}}, &answer)
	if !answer.Full {
		t.Error("loads that build on nothing were accepted")
	}
	a.send("POST", "/agent/v1/loads", fleet.Loads{Number: 3, Nodes: []fleet.Node{load(0, 1), load(1, 2)},
		Alarms: map[string]int{"cpu_wait": 2}}, nil)
	a.send("POST", "/agent/v1/loads", fleet.Loads{Number: 4, Since: 3, Nodes: []fleet.Node{load(1, 3)},
		Alarms: map[string]int{"cpu_wait": 2}}, nil)
	nodes, err := r.admin.Nodes(t.Context(), "a")
	if err != nil || len(nodes.Nodes) != 2 || *nodes.Nodes[0].CPU != 1 || *nodes.Nodes[1].CPU != 3 {
		t.Errorf("got %+v, %v", nodes, err)
	}
	alarms, err := r.admin.Alarms(t.Context())
	if err != nil || len(alarms.Alarms) != 1 || alarms.Alarms[0] != (fleetapi.Alarm{Host: "a", Kind: "cpu_wait",
		Count: 2}) {
		t.Errorf("got %+v, %v", alarms, err)
	}
}

// fuzzMessage sends data to a handler of messages: each answer is the message's, or a problem.
func fuzzMessage[T any](f *testing.F, good T, do func(*agents, *T) error) {
	f.Helper()
	data, err := json.Marshal(good)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`null`))
	f.Add([]byte(`{"number":1e999}`))
	r := newRig(f)
	r.join("a", "nodes:1 cores:2 memory:4G")
	a := &agents{r.server}
	f.Fuzz(func(t *testing.T, data []byte) {
		w := httptest.NewRecorder()
		q := httptest.NewRequestWithContext(context.Background(), http.MethodPut, "/", bytes.NewReader(data))
		q.Header.Set("Content-Type", "application/json")
		answerTo(maxJoin, func(_ *http.Request, m *T) (any, error) { return nil, do(a, m) })(w, q)
		if w.Code >= 500 {
			t.Errorf("status %d: %s", w.Code, w.Body)
		}
		if w.Code != http.StatusOK && !json.Valid(w.Body.Bytes()) {
			t.Errorf("status %d without a document: %s", w.Code, w.Body)
		}
	})
}

// A change is sent whole, twice: the first message may have the revision before the change, which hosts ignore.
func TestRepeats(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	var r repeats
	for _, c := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {10 * time.Second, true}, {20 * time.Second, false}, {60 * time.Second, false},
		{70 * time.Second, true}, {80 * time.Second, false}} {
		if got := r.whole(begun.Add(c.after)); got != c.want {
			t.Errorf("after %v: whole %v", c.after, got)
		}
	}
}

// Heartbeats without VMs have the revision of the last message: a host that follows the stream misses no change.
func TestStreamDesired_Heartbeats(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, at := startServer(t, r.store, r.ca, &setup{beats: 10 * time.Millisecond})
	h := r.join("a", "nodes:1 cores:4 memory:4G")
	var lines *bufio.Scanner
	r.eventually("the second server knows the host", func() bool {
		q, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, at+"/agent/v1/desired", http.NoBody)
		answer, err := h.http.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = answer.Body.Close() })
		lines = bufio.NewScanner(answer.Body)
		return answer.StatusCode == http.StatusOK
	})
	names, revision, beats := []string{}, int64(0), 0
	next := func(done func() bool) {
		t.Helper()
		for !done() {
			var d fleet.Desired
			if !lines.Scan() || json.Unmarshal(lines.Bytes(), &d) != nil {
				t.Fatalf("the stream ended: %v", lines.Err())
			}
			if d.Revision == revision { // as a daemon does
				beats++
				continue
			}
			names, revision = names[:0], d.Revision
			for _, vm := range d.VMs {
				names = append(names, vm.Name)
			}
		}
	}
	next(func() bool { return beats > 3 })
	for _, name := range []string{"v1", "v2"} {
		if _, err := r.admin.CreateVM(t.Context(), vmOf(name, 1, topology.GiB), fleetapi.Change{}); err != nil {
			t.Fatal(err)
		}
		next(func() bool { return slices.Contains(names, name) })
		beats = 0
		next(func() bool { return beats > 3 })
	}
	if !slices.Equal(names, []string{"v1", "v2"}) {
		t.Errorf("the host has %q", names)
	}
}

func FuzzReport(f *testing.F) {
	topo, err := topology.Synthetic("nodes:1 cores:2 memory:4G")
	if err != nil {
		f.Fatal(err)
	}
	good := fleet.Report{Protocol: agentapi.Protocol, Inventory: inventory.Host{Version: 1, Name: "a", ID: "id-a",
		Topology: topo}}
	fuzzMessage(f, good, func(a *agents, m *fleet.Report) error {
		if err := a.Report("a", *m); err != nil {
			return err
		}
		a.readPlacing(func(*state) { // a decision must survive whatever was accepted
			vm := &fleet.VM{Name: "v", Spec: vmOf("v", 1, topology.GiB).Spec}
			_, _ = a.sched.place(wish{vm: vm}, &transaction{})
		})
		return nil
	})
}

func FuzzLoads(f *testing.F) {
	fuzzMessage(f, fleet.Loads{Number: 1, Nodes: []fleet.Node{{Free: 1}}, VMs: []fleet.VMLoad{{Name: "v"}}},
		func(a *agents, m *fleet.Loads) error { _, err := a.Loads("a", *m); return err })
}

func FuzzJoin(f *testing.F) {
	csr, _ := csrOf(f)
	fuzzMessage(f, agentapi.Join{Token: "nvj_x", Host: "h", ID: "i", CSR: string(csr)},
		func(a *agents, m *agentapi.Join) error { _, err := a.join(context.Background(), m); return err })
}

func FuzzStatus(f *testing.F) {
	fuzzMessage(f, fleet.VMStatus{Name: "v", Host: "a", Generation: 1, Phase: fleet.PhaseRunning},
		func(a *agents, m *fleet.VMStatus) error { return a.Status("a", *m) })
}

func FuzzCreateVM(f *testing.F) {
	r := newRig(f)
	token, err := r.admin.CreateToken(f.Context(), "admin", fleetapi.TokenCreate{})
	if err != nil {
		f.Fatal(err)
	}
	handler, err := r.server.Handler()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(`{"project":"default","spec":{"name":"a","vcpus":1,"memory":"1G"}}`)
	f.Add(`{"spec":{"name":"a","vcpus":1e9,"memory":-1},"affinity":{"group":"g","hosts":"same"}}`)
	f.Fuzz(func(t *testing.T, body string) {
		w := httptest.NewRecorder()
		q := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/v1/vms?dry_run=true",
			strings.NewReader(body))
		q.Header.Set("Content-Type", "application/json")
		q.Header.Set("Authorization", "Bearer "+token.Secret)
		handler.ServeHTTP(w, q)
		if w.Code >= 500 || !json.Valid(w.Body.Bytes()) {
			t.Errorf("status %d: %s", w.Code, w.Body)
		}
	})
}
