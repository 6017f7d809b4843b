package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/memory"
	"github.com/numavisor/numavisor/internal/topology"
)

// loadsOf are the loads of a host with one node.
func loadsOf(number uint64, cpu float64) fleet.Loads {
	return fleet.Loads{Number: number, Taken: time.Unix(int64(number), 0), Nodes: []fleet.Node{{
		NodeLoad: inventory.NodeLoad{Node: 0, CPU: cpu}, Free: topology.GiB}}}
}

// Any server may decide on any host, so each has the loads of all: also those of a host that is connected to
// another one, and of one that changes servers.
func TestServers_ShareTheLoadsOfTheirHosts(t *testing.T) {
	r := newRig(t)
	other, at := startServer(t, r.store, r.ca, &setup{})
	h := r.join("a", "nodes:1 cores:4 memory:4G")
	h.send("POST", "/agent/v1/loads", loadsOf(1, 1.5), nil)
	seen := func(s *Server, cpu float64) func() bool {
		return func() bool {
			l := s.loads.of("a")
			return l != nil && l.nodes[0].CPU == cpu
		}
	}
	r.eventually("the other server has the loads", seen(other, 1.5))
	h.send("POST", "/agent/v1/loads", loadsOf(2, 2.5), nil)
	r.eventually("and the next ones", seen(other, 2.5))
	h.url = at
	h.send("POST", "/agent/v1/loads", loadsOf(3, 3.5), nil)
	if !seen(other, 3.5)() {
		t.Error("the server does not use what the host says itself")
	}
	if err := r.server.takeRelayed(t.Context(), "a", loadsOf(4, 4)); err != nil || seen(r.server, 4)() {
		t.Errorf("loads that were relayed replaced those of a connected host: %v", err)
	}
	if err := r.server.takeRelayed(t.Context(), "b", loadsOf(0, 1)); err == nil {
		t.Error("impossible loads were taken")
	}
}

// Only servers may say what hosts of other servers do.
func TestServer_TakesRelayedLoadsOfServersOnly(t *testing.T) {
	r := newRig(t)
	h := r.join("member.numavisor.internal", "nodes:1 cores:4 memory:4G") // the name that servers have
	body := `{"hosts": {"x": {"number": 1}}}`
	for who, client := range map[string]*http.Client{"a host": h.http, "anybody": r.anonymous()} {
		q, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/server/v1/loads",
			strings.NewReader(body))
		q.Header.Set("Content-Type", "application/json")
		answer, err := client.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %s", who, answer.Status)
		}
	}
	if r.server.loads.of("x") != nil {
		t.Error("the loads were taken")
	}
}

// lost is a store that has lost its quorum.
type lost struct {
	store.Store
	is atomic.Bool
}

func (l *lost) List(ctx context.Context, prefix string) ([]store.Record, int64, error) {
	records, revision, err := l.Store.List(ctx, prefix)
	if err == nil && l.is.Load() {
		err = store.ErrStale
	}
	return records, revision, err
}

// desiredAt opens a stream of desired states at a server, and returns the first one.
func (h *fakeHost) desiredAt(url string) (fleet.Desired, int) {
	h.t.Helper()
	q, _ := http.NewRequestWithContext(h.t.Context(), http.MethodGet, url+"/agent/v1/desired", nil)
	answer, err := h.http.Do(q)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	var d fleet.Desired
	if answer.StatusCode == http.StatusOK {
		line, _ := bufio.NewReader(answer.Body).ReadBytes('\n')
		if err := json.Unmarshal(line, &d); err != nil {
			h.t.Fatal(err)
		}
	}
	return d, answer.StatusCode
}

// A server whose records may be old does not tell a host what to do: the host may have heard newer things from
// another server, such as that a VM runs elsewhere.
func TestServer_TellsHostsNothingOld(t *testing.T) {
	r := newRig(t)
	behind := &lost{Store: r.store}
	_, at := startServer(t, behind, r.ca, &setup{})
	h := r.join("a", "nodes:1 cores:4 memory:4G")
	r.eventually("both servers are known", func() bool {
		d, status := h.desiredAt(at)
		return status == http.StatusOK && len(d.Servers) == 2
	})
	behind.is.Store(true)
	if d, status := h.desiredAt(at); status != http.StatusServiceUnavailable {
		t.Errorf("the server without a quorum answers %d, %+v", status, d)
	}
}

// behind is a store whose watches are held back.
type behind struct {
	store.Store
	held chan struct{} // closed: they are not
}

func (b *behind) Watch(ctx context.Context, prefix string, after int64) <-chan store.Changes {
	out := make(chan store.Changes)
	go func() {
		defer close(out)
		select {
		case <-b.held:
		case <-ctx.Done():
			return
		}
		for c := range b.Store.Watch(ctx, prefix, after) {
			select {
			case out <- c:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

// A server that is behind the others neither refuses a change nor finds that it is done already: the record may differ.
func TestServer_RefusesNothingByOldRecords(t *testing.T) {
	r := newRig(t)
	r.join("a", "nodes:1 cores:4 memory:4G")
	token, err := r.admin.CreateToken(t.Context(), "admin", fleetapi.TokenCreate{})
	if err != nil {
		t.Fatal(err)
	}
	spec := func(name string) fleetapi.VMCreate {
		return fleetapi.VMCreate{Project: fleetapi.DefaultProject, Run: fleet.Stopped,
			Spec: guest.Spec{Name: name, VCPUs: 1, Memory: topology.GiB / 4}}
	}
	if _, err := r.admin.CreateVM(t.Context(), spec("early"), fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	late := &behind{Store: r.store, held: make(chan struct{})}
	_, url := startServer(t, late, r.ca, &setup{})
	other, err := fleetapi.NewClient(fleetapi.Config{URL: url, Token: token.Secret, CA: r.ca.CertificatePEM()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	if _, err := r.admin.CreateVM(t.Context(), spec("web"), fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.admin.StartVM(t.Context(), "early", fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	unsure := func(err error) bool {
		var p *fleetapi.Problem
		return errors.As(err, &p) && p.Type == fleetapi.ProblemUnavailable
	}
	if _, err := other.DeleteVM(t.Context(), "web", fleetapi.Change{}); !unsure(err) {
		t.Errorf("deleting a VM that the server does not know yet: %v", err)
	}
	if _, err := other.StopVM(t.Context(), "early", fleetapi.Change{}); !unsure(err) {
		t.Errorf("stopping a VM that was started elsewhere: %v", err)
	}
	close(late.held)
	r.eventually("the VM is stopped, and the other one is deleted", func() bool {
		_, stopped := other.StopVM(t.Context(), "early", fleetapi.Change{})
		_, deleted := other.DeleteVM(t.Context(), "web", fleetapi.Change{})
		return stopped == nil && deleted == nil
	})
	if vm, err := r.admin.VM(t.Context(), "early"); err != nil || vm.Run != fleet.Stopped {
		t.Errorf("early is %s: %v", vm.Run, err)
	}
}

// Without a quorum, changes fail with a clear error. Reads answer with the server's records, and say how old these may
// be.
func TestServer_WithoutAQuorumReadsSaySo(t *testing.T) {
	r := newRig(t)
	r.join("a", "nodes:1 cores:4 memory:4G")
	var ages []time.Duration
	c, err := fleetapi.NewClient(fleetapi.Config{URL: r.url, Token: r.token, CA: r.ca.CertificatePEM(),
		Old: func(age time.Duration) { ages = append(ages, age) }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Hosts(t.Context()); err != nil || len(ages) > 0 {
		t.Fatalf("with a quorum: %v, ages %v", err, ages)
	}
	records, ok := r.store.(*memory.Store)
	if !ok {
		t.Fatalf("the store is a %T", r.store)
	}
	records.LoseQuorum(true)
	defer records.LoseQuorum(false)
	r.server.alive.mu.Lock()
	r.server.alive.renewed = time.Now().Add(-time.Minute)
	r.server.alive.mu.Unlock()
	if hosts, err := c.Hosts(t.Context()); err != nil || len(hosts) != 1 {
		t.Errorf("%d hosts, %v", len(hosts), err)
	}
	if len(ages) != 1 || ages[0] < time.Minute || ages[0] > 10*time.Minute {
		t.Errorf("the answer says that its records may be old by %v, want a minute", ages)
	}
	if _, err := c.Cordon(t.Context(), "a"); problemType(err) != fleetapi.ProblemUnavailable {
		t.Errorf("a change: %v", err)
	}
}
