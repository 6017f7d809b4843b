package xen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Driver acts on the Xen host of which this is the control domain. Its calls may run at the same time.
type Driver struct {
	run Run
	// settings is the file with the settings of xl.
	settings string
	limit    time.Duration // of a call that reads or pins
	build    time.Duration // of a call that builds or ends a guest
	reboot   time.Duration // of the wait for a guest that reboots

	mu      sync.Mutex // one debug key at a time: its answers share the console ring
	dumped  dump
	dumpFor string // the domains and their sizes when dumped was read
	dumpAt  time.Time
	stamp   string // of the last dump that was read
	// hardOnly are the domains, when they were last listed, whose scheduler ignores soft affinity.
	hardOnly map[int]bool
	control  inventory.ControlDomain // dom0 when the domains were last listed
	clock    func() time.Time
	// Shared reports whether other hosts reach all files of these paths; nil: it is not known.
	Shared func(paths []string) *bool
	// listPrograms is for tests.
	listPrograms func() ([]program, error)
	spent        atomic.Int64 // CPU time of the programs that were run, in nanoseconds
	hung         atomic.Bool  // the last call of xl hung

	seen sync.Mutex                         // held for no call: the daemon's samples wait for it
	free map[topology.NodeID]topology.Bytes // memory, when the topology was last read
	// leaving are the guests that this process has xl migrate.
	leaving map[string]bool
	// capped are domains whose scheduler limits their CPU time, when they were last listed.
	capped map[int]bool
}

// buildTime is the deadline of xl create and xl destroy: Xen scrubs and assigns all memory of a guest.
const buildTime = 5 * time.Minute

// New returns a driver. A nil run runs the installed programs.
func New(run Run) *Driver {
	d := &Driver{run: run, settings: toolSettings, limit: CallTime, build: buildTime, reboot: rebootTime,
		clock: time.Now}
	if run == nil {
		d.run = d.runTool
	}
	return d
}

// Here reports whether the root belongs to the control domain of a running Xen.
func Here(root string) bool {
	data, err := os.ReadFile(filepath.Join(root, "proc", "xen", "capabilities"))
	return err == nil && bytes.Contains(data, []byte("control_d"))
}

// Name implements observe.Hypervisor.
func (d *Driver) Name() guest.Hypervisor { return guest.Xen }

// Topology returns the host's topology: the control domain's kernel sees only its own vCPUs.
func (d *Driver) Topology() (topology.Topology, error) {
	out, err := d.xl(context.Background(), "info", "-n") // it has a deadline of its own
	if err != nil {
		return topology.Topology{}, err
	}
	t, err := ParseInfo(bytes.NewReader(out))
	if err == nil {
		free := make(map[topology.NodeID]topology.Bytes, len(t.Nodes))
		for i := range t.Nodes {
			free[t.Nodes[i].ID] = t.Nodes[i].Free
		}
		d.seen.Lock()
		d.free = free
		d.seen.Unlock()
	}
	return t, err
}

// Guests implements observe.Hypervisor. Guests of Xen have no process here, so that Seen is
// filled: a vCPU counts as a thread without a number.
func (d *Driver) Guests(ctx context.Context) ([]inventory.Guest, error) {
	s, err := d.look(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing VMs of Xen: %w", err)
	}
	gaps := d.comingOrGoing(&s)
	miss := func(kind inventory.GapKind, object inventory.Ref, what string, err error) {
		if err != nil {
			gaps = append(gaps, inventory.Gap{Kind: kind, Object: object, What: what, Why: err.Error()})
		}
	}
	located, err := d.locate(ctx, s)
	miss(inventory.MemoryUnread, inventory.HostRef(), "memory of VMs by node", err)
	intents, err := d.intents(ctx)
	miss(inventory.IntentUnused, inventory.HostRef(), "recorded intents", err)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("listing VMs of Xen: %w", err)
	}
	guests := make([]inventory.Guest, 0, len(s.domains))
	for i := range s.domains {
		dom := &s.domains[i]
		if dom.ID == controlDomain {
			continue
		}
		g := s.guest(dom)
		if c, ok := s.configs[dom.ID]; ok {
			g.Config.SharedStorage = d.shared(&c)
		}
		g.Seen.MemoryByNode = located.nodes[dom.ID]
		if g.Seen.MemoryByNode != nil {
			g.Seen.MemorySource = "xl debug-keys u"
		}
		if text, ok := intents[g.UUID]; ok {
			i, err := decodeIntent(text)
			if err == nil {
				g.SetIntent(i)
			}
			miss(inventory.IntentUnused, inventory.GuestRef(g.Name), "its recorded intent", err)
		}
		guests = append(guests, g)
	}
	sortByName(guests)
	if len(gaps) > 0 {
		return guests, &IncompleteError{gaps}
	}
	return guests, nil
}

// IncompleteError means that all guests are listed, but something about some is unknown.
type IncompleteError struct{ gaps []inventory.Gap }

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("%s: %s", e.gaps[0].What, e.gaps[0].Why)
}

// Gaps returns what is unknown, and why.
func (e *IncompleteError) Gaps() []inventory.Gap { return e.gaps }

// state is what xl says about all domains.
type state struct {
	domains []domain
	vcpus   map[int][]vcpu
	configs map[int]config
	pools   []inventory.Pool
}

// cpus returns the CPUs of a domain's pool, or all CPUs of the set where the pool is not known.
func (s *state) cpus(pool string) (cpus topology.CPUSet) {
	for i := range s.pools {
		if s.pools[i].Name == pool {
			return s.pools[i].CPUs
		}
	}
	return cpus
}

func (d *Driver) look(ctx context.Context) (state, error) {
	var s state
	var err error
	if s.pools, err = d.Pools(ctx); err != nil {
		return s, err
	}
	list, err := d.xl(ctx, "list", "-c", "-n")
	if err != nil {
		return s, err
	}
	if s.domains, err = parseDomains(list); err != nil {
		return s, err
	}
	vcpus, err := d.xl(ctx, "vcpu-list")
	if err != nil {
		return s, err
	}
	if s.vcpus, err = parseVCPUs(vcpus); err != nil {
		return s, err
	}
	configs, err := d.xl(ctx, "list", "-l")
	if err != nil {
		return s, err
	}
	s.configs, err = parseConfigs(configs)
	if err == nil {
		d.remember(&s)
	}
	return s, err
}

// guest returns a domain as a guest, without its memory by node and its intent.
func (s *state) guest(dom *domain) inventory.Guest {
	g := inventory.Guest{Name: dom.Name, Hypervisor: guest.Xen, Can: inventory.CapabilitiesOf(guest.Xen),
		State: dom.runState(), Pool: dom.Pool, Run: strconv.Itoa(dom.ID)}
	if c, ok := s.configs[dom.ID]; ok {
		g.UUID, g.Config = c.Config.Create.UUID, c.inventory()
	}
	g.Config.VCPUs = max(g.Config.VCPUs, len(s.vcpus[dom.ID]), dom.VCPUs)
	if g.Config.Memory == 0 {
		g.Config.Memory = dom.Memory
	}
	if nodes, err := topology.ParseSet[topology.NodeID](dom.Nodes); err == nil {
		g.Config.NodeAffinity = nodes // "all" and "none" are no lists
	}
	pool := s.cpus(dom.Pool)
	for _, v := range s.vcpus[dom.ID] {
		id := guest.VCPUID(v.ID)
		t := inventory.Thread{Name: fmt.Sprintf("vCPU %d", v.ID), Role: inventory.RoleVCPU, VCPU: &id,
			LastCPU: topology.CPUID(v.CPU), Affinity: effective(v.Hard, pool), RunTime: v.Run}
		t.Preferred = v.Soft.Intersect(t.Affinity)
		g.Seen.Threads = append(g.Seen.Threads, t)
		if !v.Hard.IsEmpty() {
			if g.Config.Pins == nil {
				g.Config.Pins = map[guest.VCPUID]topology.CPUSet{}
			}
			g.Config.Pins[id] = v.Hard
		}
		if !v.Soft.IsEmpty() {
			if g.Config.SoftPins == nil {
				g.Config.SoftPins = map[guest.VCPUID]topology.CPUSet{}
			}
			g.Config.SoftPins[id] = v.Soft
		}
	}
	if len(g.Seen.Threads) > 0 {
		g.Seen.ThreadSource = "xl vcpu-list"
	}
	return g
}

// inventory returns the part of a domain's configuration that affects locality.
func (c *config) inventory() inventory.Config {
	b := &c.Config.Build
	kib := b.TargetKiB
	if kib == 0 {
		kib = b.MaxKiB
	}
	out := inventory.Config{VCPUs: b.MaxVCPUs, Memory: topology.Bytes(kib) * topology.KiB}
	for i, n := range b.VNUMA {
		cell := inventory.ConfigCell{ID: guest.CellID(i), Memory: topology.Bytes(n.KiB) * topology.KiB}
		for _, v := range n.VCPUs {
			if v >= 0 && v < maxVCPUs {
				cell.VCPUs = cell.VCPUs.With(guest.VCPUID(v))
			}
		}
		if node := topology.NodeID(n.Node); n.Node >= 0 {
			cell.Node = &node
		}
		for to, distance := range n.Distances {
			if cell.Distances == nil {
				cell.Distances = map[guest.CellID]int{}
			}
			cell.Distances[guest.CellID(to)] = distance
		}
		out.Cells = append(out.Cells, cell)
	}
	for _, p := range c.Config.PCI {
		out.Devices = append(out.Devices, fmt.Sprintf("%04x:%02x:%02x.%x", p.Domain, p.Bus, p.Device, p.Func))
	}
	return out
}

// maxVCPUs is the most that Xen gives a guest (HVM_MAX_VCPUS is less).
const maxVCPUs = 8192

// dumpLife bounds how long memory by node counts as current while no domain comes, goes or
// changes its size. Xen does not move memory of a running guest, but a guest that balloons within
// a MiB or exchanges pages is not seen otherwise.
const dumpLife = time.Minute

// locate returns where the memory of all domains is. The debug key u walks the page list of
// each domain while it holds a lock, so its answer is used until a domain comes, goes or changes its
// size, for a minute at most.
func (d *Driver) locate(ctx context.Context, s state) (dump, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var key strings.Builder
	for i := range s.domains {
		fmt.Fprintf(&key, "%d %d;", s.domains[i].ID, s.domains[i].Memory)
	}
	if d.dumpFor == key.String() && d.clock().Sub(d.dumpAt) < dumpLife {
		return d.dumped, nil
	}
	fresh, err := d.ask(ctx)
	if err != nil {
		return dump{}, err
	}
	if len(fresh.cut) > 0 || fresh.stamp == "" {
		err = fmt.Errorf("the console ring of Xen is too small for the answer to the debug key u: %d of %d domains "+
			"are in it; boot Xen with a greater conring_size", len(fresh.nodes), len(s.domains))
		if fresh.covers(s.domains) {
			err = nil
		}
	}
	if err == nil {
		d.dumped, d.dumpFor, d.dumpAt = fresh, key.String(), d.clock()
	}
	return fresh, err
}

// covers reports whether the dump has all domains.
func (p *dump) covers(domains []domain) bool {
	for i := range domains {
		if p.nodes[domains[i].ID] == nil {
			return false
		}
	}
	return true
}

// ask sends the debug key and reads the answer. Xen answers before the call returns.
func (d *Driver) ask(ctx context.Context) (dump, error) {
	if _, err := d.xl(ctx, "debug-keys", "u"); err != nil {
		return dump{}, err
	}
	console, err := d.xl(ctx, "dmesg")
	if err != nil {
		return dump{}, err
	}
	found, err := parseDump(console)
	if err != nil {
		return found, err
	}
	if found.stamp != "" && found.stamp == d.stamp {
		return dump{}, errors.New("Xen did not answer the debug key u: the console ring has only an earlier answer")
	}
	d.stamp = found.stamp
	return found, nil
}

// listed returns the configurations of all domains, by identity. xl takes a name of digits for an identity, so that
// calls are made with identities.
func (d *Driver) listed(ctx context.Context) (map[int]config, error) {
	out, err := d.xl(ctx, "list", "-l")
	if err != nil {
		return nil, err
	}
	return parseConfigs(out)
}

// RunOf implements apply.Runs: the number of the domain, which Xen gives to no later one before 32,752 others.
func (d *Driver) RunOf(ctx context.Context, name string) (string, error) {
	id, _, err := d.find(ctx, name)
	return strconv.Itoa(id), err
}

// on runs an xl command on the guest of a name, again if the guest has rebooted meanwhile. One that ended meanwhile is
// guest.ErrNotFound.
func (d *Driver) on(ctx context.Context, what, name string, limit time.Duration, args func(id string) []string) error {
	id, uuid, err := d.find(ctx, name)
	if err != nil {
		return err
	}
	for {
		if _, err = d.call(ctx, limit, "xl", args(strconv.Itoa(id))...); err == nil {
			return nil
		}
		now, same, gone := d.find(ctx, name)
		switch {
		case errors.Is(gone, guest.ErrNotFound) || gone == nil && (same != uuid || now != id && uuid == ""):
			return fmt.Errorf("%s VM %s: %w", what, name, guest.ErrNotFound)
		case gone != nil || now == id:
			return refused(fmt.Errorf("%s VM %s: %w", what, name, err))
		}
		id = now
	}
}

// refused marks the error of a command that ran and failed.
func refused(err error) error {
	var failed *FailedError
	if errors.As(err, &failed) {
		return fmt.Errorf("%w: %w", guest.ErrRefused, err)
	}
	return err
}

// PinVCPU implements apply.Hypervisor: the vCPU runs on no other CPUs (hard affinity), and prefers
// the same (soft affinity).
func (d *Driver) PinVCPU(ctx context.Context, name string, v guest.VCPUID, cpus topology.CPUSet) error {
	return d.PinVCPUSoft(ctx, name, v, cpus, cpus)
}

// PinVCPUSoft implements apply.SoftPinner.
func (d *Driver) PinVCPUSoft(ctx context.Context, name string, v guest.VCPUID, cpus, prefer topology.CPUSet) error {
	if cpus.IsEmpty() || prefer.IsEmpty() {
		return fmt.Errorf("pinning vCPU %d of VM %s: %w: no CPU is given", v, name, guest.ErrRefused)
	}
	return d.on(ctx, fmt.Sprintf("pinning vCPU %d of", v), name, d.limit, func(id string) []string {
		return []string{"vcpu-pin", id, strconv.Itoa(int(v)), cpus.String(), d.soft(number(id), prefer.String())}
	})
}

// cannot is the answer to calls for which a guest of Xen has no use.
func (d *Driver) cannot(ctx context.Context, name, what, why string) error {
	if _, _, err := d.find(ctx, name); err != nil {
		return err
	}
	return fmt.Errorf("%s of VM %s: %w: %s", what, name, guest.ErrRefused, why)
}

// PinEmulator implements apply.Hypervisor; it refuses.
func (d *Driver) PinEmulator(ctx context.Context, name string, _ topology.CPUSet) error {
	return d.cannot(ctx, name, "pinning the emulator", "a VM of Xen has no emulator threads of its own on the host")
}

// PinIOThread implements apply.Hypervisor; it refuses.
func (d *Driver) PinIOThread(ctx context.Context, name string, _ int, _ topology.CPUSet) error {
	return d.cannot(ctx, name, "pinning an I/O thread", "a VM of Xen has no I/O threads")
}

// TuneLive implements apply.Hypervisor; it refuses.
func (d *Driver) TuneLive(ctx context.Context, name string, _ topology.NodeSet) error {
	return d.cannot(ctx, name, "changing the nodes", "Xen does not move the memory of a running VM, and takes "+
		"new memory from the nodes with which the VM was created")
}

// Configure implements apply.Hypervisor: xl stores no configuration for a next start.
func (d *Driver) Configure(ctx context.Context, name string, _ guest.Intent) error {
	return d.transient(ctx, name)
}

// Resize implements operate.Domains: xl stores no configuration for a next start.
func (d *Driver) Resize(ctx context.Context, name string, _ guest.Intent) error {
	return d.transient(ctx, name)
}

// StoredBinding implements apply.Hypervisor.
func (d *Driver) StoredBinding(ctx context.Context, name string) (string, error) {
	return "", d.transient(ctx, name)
}

// RestoreBinding implements apply.Hypervisor.
func (d *Driver) RestoreBinding(ctx context.Context, name, _ string) error {
	return d.transient(ctx, name)
}

func (d *Driver) transient(ctx context.Context, name string) error {
	if _, _, err := d.find(ctx, name); err != nil {
		return err
	}
	return fmt.Errorf("VM %s: %w: xl has none; change the file with which the VM is created", name, guest.ErrTransient)
}
