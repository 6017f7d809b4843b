package server

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	agentapi "github.com/numavisor/numavisor/internal/api/agent"
	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/server/auth"
	"github.com/numavisor/numavisor/internal/server/store"
	"github.com/numavisor/numavisor/internal/server/store/memory"
	"github.com/numavisor/numavisor/internal/topology"
)

// slowStore delays transactions and the news of them, so that servers decide on old state.
type slowStore struct {
	store.Store
	mu     sync.Mutex
	random *rand.Rand
}

func (s *slowStore) pause() {
	s.mu.Lock()
	d := time.Duration(s.random.IntN(3)) * time.Millisecond
	s.mu.Unlock()
	time.Sleep(d)
}

func (s *slowStore) Commit(ctx context.Context, t store.Txn) (int64, error) {
	s.pause()
	return s.Store.Commit(ctx, t)
}

func (s *slowStore) Watch(ctx context.Context, prefix string, after int64) <-chan store.Changes {
	in, out := s.Store.Watch(ctx, prefix, after), make(chan store.Changes)
	go func() {
		defer close(out)
		for c := range in {
			s.pause()
			select {
			case out <- c:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

// oracle checks each revision of the records by itself: it knows nothing of how decisions are made.
type oracle struct {
	t       *testing.T
	nodes   map[topology.NodeID]topology.Node
	vms     map[string]fleet.VM
	quota   int // vCPUs of the project
	changes int // of VMs; some are of one transaction
}

func (o *oracle) take(c store.Changes) {
	relevant := false
	for _, e := range c.Events {
		name, isVM := strings.CutPrefix(e.Key, store.VMs)
		if !isVM {
			continue
		}
		relevant = true
		o.changes++
		if e.Deleted {
			delete(o.vms, name)
			continue
		}
		var vm fleet.VM
		if err := json.Unmarshal(e.Value, &vm); err != nil {
			o.t.Error(err)
		}
		if before, had := o.vms[name]; had && vm.Generation < before.Generation {
			o.t.Errorf("revision %d: %s goes back from generation %d to %d", c.Revision, name, before.Generation,
				vm.Generation)
		}
		o.vms[name] = vm
	}
	if relevant {
		o.check(c.Revision)
	}
}

// check finds what is claimed twice.
func (o *oracle) check(revision int64) {
	memory, exclusive := map[string]topology.Bytes{}, map[string]string{}
	shared, widest, left := map[string]int{}, map[string]int{}, map[string]int{}
	vcpus := 0
	claim := func(host string, p *guest.Placement) {
		for _, r := range p.Reservations {
			at := fmt.Sprint(host, " node ", r.Node)
			memory[at] += r.Memory
			if memory[at] > o.nodes[r.Node].Memory {
				o.t.Errorf("revision %d: %s has %v claimed of %v", revision, at, memory[at], o.nodes[r.Node].Memory)
			}
			for cpu := range r.Exclusive.All() {
				key := fmt.Sprint(host, " CPU ", cpu)
				if other, taken := exclusive[key]; taken {
					o.t.Errorf("revision %d: %s is claimed by %s and %s", revision, key, other, p.Guest)
				}
				exclusive[key] = p.Guest
			}
			if _, seen := left[at]; !seen {
				left[at] = o.nodes[r.Node].CPUs.Len()
			}
			left[at] -= r.Exclusive.Len()
			if p.CPUMode != guest.CPUExclusive {
				shared[at], widest[at] = shared[at]+r.VCPUs, max(widest[at], r.VCPUs)
			}
		}
	}
	for name := range o.vms {
		vm := o.vms[name]
		vcpus += vm.Spec.VCPUs
		if vm.Host != "" {
			claim(vm.Host, &vm.Placement)
		}
		if vm.Migration != nil {
			claim(vm.Migration.To, &vm.Migration.Placement)
		}
	}
	const overcommit = 2 // of the default policy
	for at, cpus := range left {
		if shared[at] > overcommit*cpus || widest[at] > cpus {
			o.t.Errorf("revision %d: %s has %d vCPUs, %d of one VM, on %d shared CPUs", revision, at, shared[at],
				widest[at], cpus)
		}
	}
	if vcpus > o.quota {
		o.t.Errorf("revision %d: the project has %d vCPUs, its quota is %d", revision, vcpus, o.quota)
	}
}

// Three servers with state that is late decide at the same time, on few hosts that are nearly full. A seed gives
// the same requests and delays again; the order in which goroutines run differs. CLAIM_RUNS is the number of seeds,
// CLAIM_SEED the first one.
func TestServers_ClaimNothingTwice(t *testing.T) {
	t.Parallel()
	runs, _ := strconv.Atoi(os.Getenv("CLAIM_RUNS"))
	first, _ := strconv.Atoi(os.Getenv("CLAIM_SEED"))
	for i := range max(1, runs) {
		t.Run(fmt.Sprint("seed", first+i), func(t *testing.T) {
			t.Parallel()
			claimAtOnce(t, uint64(first+i))
		})
	}
}

func claimAtOnce(t *testing.T, seed uint64) {
	t.Helper()
	base := memory.New(memory.Options{})
	if _, err := FirstAdmin(t.Context(), base, time.Now()); err != nil {
		t.Fatal(err)
	}
	ca, err := auth.NewCA("fleet", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	const quota = 40
	var servers []*Server
	for i := range 3 {
		s, _ := startServer(t, &slowStore{Store: base, random: rand.New(rand.NewPCG(seed, uint64(i)))}, ca, &setup{})
		servers = append(servers, s)
	}
	admin := &fleetapi.User{Name: "admin", Role: fleetapi.Admin, Projects: []string{fleetapi.AllProjects}}
	call := func(id string) rest.Call {
		op, _ := fleetapi.OperationByID(id)
		return rest.Call{User: admin, Operation: op}
	}
	topo, err := topology.Synthetic("nodes:2 cores:4 memory:4G")
	if err != nil {
		t.Fatal(err)
	}
	hosts := []string{"a", "b", "c"}
	addHosts(t, servers, base, hosts, topo)
	if _, err := servers[0].PutProject(t.Context(), call("put-project"), "default",
		fleetapi.ProjectEdit{Quota: fleetapi.Quota{VCPUs: quota}}); err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	for n, s := range servers {
		for worker := range 2 {
			random := rand.New(rand.NewPCG(seed, uint64(100+10*n+worker)))
			work.Go(func() { bother(t, s, random, call, hosts, fmt.Sprint(n, worker)) })
		}
	}
	work.Wait()
	seen := &oracle{t: t, nodes: map[topology.NodeID]topology.Node{}, vms: map[string]fleet.VM{}, quota: quota}
	for _, n := range topo.Nodes {
		seen.nodes[n.ID] = n
	}
	_, last, err := base.List(t.Context(), store.All)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for c := range base.Watch(ctx, store.All, 1) {
		if c.Err != nil {
			t.Fatal(c.Err)
		}
		seen.take(c)
		if c.Revision >= last {
			break
		}
	}
	if seen.changes < 10 {
		t.Errorf("only %d changes of VMs: the test does too little", seen.changes)
	}
}

// addHosts makes hosts that all servers hear.
func addHosts(t *testing.T, servers []*Server, base store.Store, hosts []string, topo topology.Topology) {
	t.Helper()
	for i, host := range hosts {
		a := &agents{servers[i%len(servers)]}
		tx := &transaction{}
		tx.put(store.Hosts+host, fleet.Host{Name: host, ID: host})
		if _, err := base.Commit(t.Context(), tx.Txn); err != nil {
			t.Fatal(err)
		}
		for _, s := range servers {
			s.cache.wait(t.Context(), int64(1+i), time.Millisecond)
			waitFor(t, func() (ok bool) { s.cache.read(func(st *state) { _, ok = st.hosts[host] }); return ok })
		}
		a.alive.hear(host)
		if err := a.Report(host, fleet.Report{Protocol: agentapi.Protocol,
			Inventory: inventory.Host{Version: 1, Name: host, ID: host, Topology: topo}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range servers {
		waitFor(t, func() (ok bool) {
			ok = true
			s.cache.read(func(st *state) {
				for _, h := range hosts {
					ok = ok && st.keys[store.Alive+h] != 0 && st.reports[h] != nil
				}
			})
			return ok
		})
	}
}

func waitFor(t *testing.T, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in time")
		}
	}
}

// bother creates, migrates, resizes and deletes VMs at random, and reports as a host would.
func bother(t *testing.T, s *Server, random *rand.Rand, call func(string) rest.Call, hosts []string, who string) {
	t.Helper()
	refused := func(err error) {
		if err != nil && problemType(err) == "" {
			t.Errorf("an error that users cannot read: %v", err)
		}
	}
	var mine []string
	for i := range 15 {
		some := fmt.Sprint("vm", random.IntN(6))
		if len(mine) > 0 {
			some = mine[random.IntN(len(mine))]
		}
		var err error
		switch random.IntN(6) {
		case 0, 1, 2:
			v := vmOf(fmt.Sprint("vm-", who, "-", i), 1+random.IntN(4), topology.Bytes(1+random.IntN(3))*topology.GiB)
			if random.IntN(3) == 0 {
				v.Spec.CPU.Binding = guest.CPUExclusive
			}
			if random.IntN(3) == 0 {
				v.Affinity = fleet.Affinity{Group: "g", Hosts: fleet.Differ}
			}
			if _, err = s.CreateVM(t.Context(), call("create-vm"), v); err == nil {
				mine = append(mine, v.Spec.Name)
			}
			mine = append(mine, burst(t, s, random, call, v, refused)...)
		case 3:
			_, err = s.MigrateVM(t.Context(), call("migrate-vm"), some, fleetapi.VMMigrate{})
		case 4:
			_, err = s.BindVM(t.Context(), call("bind-vm"), some)
		case 5:
			_, err = s.DeleteVM(t.Context(), call("delete-vm"), some)
		}
		refused(err)
		obeyAll(s, hosts[random.IntN(len(hosts))], random)
	}
}

// burst creates some VMs like one at the same time, and returns their names.
func burst(
	t *testing.T, s *Server, random *rand.Rand, call func(string) rest.Call, like fleetapi.VMCreate, refused func(error),
) (made []string) {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	for i := range random.IntN(4) {
		v := like
		v.Spec.Name = fmt.Sprint(like.Spec.Name, "-", i)
		all.Go(func() {
			_, err := s.CreateVM(t.Context(), call("create-vm"), v)
			mu.Lock()
			defer mu.Unlock()
			if refused(err); err == nil {
				made = append(made, v.Spec.Name)
			}
		})
	}
	all.Wait()
	slices.Sort(made)
	return made
}

// obeyAll reports for a host that it has done what the server wants, as far as its state is known.
func obeyAll(s *Server, host string, random *rand.Rand) {
	var d fleet.Desired
	s.cache.read(func(st *state) { d = desiredOf(st, host) })
	for _, vm := range d.VMs {
		status := obey(vm)
		status.Name, status.Host, status.Generation = vm.Name, host, vm.Generation
		if m := vm.Migration; m != nil {
			part := &fleet.MigrationStatus{Began: m.Began, Phase: fleet.MigrationPrepared, Arrival: &fleet.Arrival{}}
			switch {
			case m.Cancel != "" && host == m.To:
				part.Phase = fleet.MigrationGivenBack
			case m.Ready != nil && host == m.To && random.IntN(2) == 0:
				part.Phase = fleet.MigrationArrived
			case host == vm.Host && (m.Cancel != "" || random.IntN(3) == 0):
				part.Phase = fleet.MigrationStays
			case host == vm.Host:
				part.Phase = fleet.MigrationCopying
			}
			status.Migration = part
		}
		_ = (&agents{s}).Status(host, *status) // it may be late, and be refused
	}
}
