package xen

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// simulated is a Xen host in memory: it answers the tools' command lines with outputs in the form
// of xl 4.17, and with its exit statuses.
type simulated struct {
	mu       sync.Mutex
	topology topology.Topology
	domains  map[int]*simDomain
	next     int
	store    map[string]string
	dumps    []string
	calls    []string
	now      int
	failing  map[string]error // by the command's first words
	pools    []inventory.Pool
	booted   string                 // options of Xen
	before   func(line string)      // called before each command, with the lock held
	hangs    func(line string) bool // whether a command waits until its context ends
	slow     time.Duration          // that long takes xl vcpu-list
	migrated string                 // the configuration of the last migration
	worked   time.Time              // until when busy vCPUs have run
	peer     *simulated             // the host to which a transport leads
	captured func() ([]byte, error) // what numavisor capture writes
	ends     string                 // how a migration to the peer ends: see leave
	deaf     bool                   // guests ignore xl shutdown
	old      bool                   // xl before 4.20, which does not resume
	programs []program              // named xl, that run
	gate     chan struct{}          // each xl migrate waits for it
}

type simDomain struct {
	name, uuid string
	memory     int // MiB
	hard, soft []topology.CPUSet
	node       topology.NodeID
	cells      []simCell // its memory, if it has virtual nodes
	pool       string
	paused     bool
	busy       bool            // all vCPUs want to run
	config     string          // additions to its configuration, in JSON
	suspended  bool            // after its last pages were copied
	foreign    bool            // another program has made it: xl has no configuration
	ending     string          // its state in xl's letters while it ends
	ran        []time.Duration // by vCPU
	cpu        []topology.CPUID
	running    []bool
}

// simCell is a virtual node.
type simCell struct {
	node   topology.NodeID
	memory int // MiB
	vcpus  guest.VCPUSet
}

// pages counts the domain's pages on a node.
func (d *simDomain) pages(node topology.NodeID) (n int) {
	if d.cells == nil && d.node == node {
		return d.memory * 256
	}
	for _, c := range d.cells {
		if c.node == node {
			n += c.memory * 256
		}
	}
	return n
}

// virtualNodes reads vnuma as libxl does; an error says what libxl refuses.
func (s *simulated) virtualNodes(c *Config, memory topology.Bytes) (cells []simCell, err error) {
	nodes, err := c.virtualNodes()
	if err != nil || nodes == nil {
		return nil, err
	}
	if c.Type() != "hvm" {
		return nil, errors.New("libxl__arch_domain_finalise_hw_description: cannot write ACPI tables")
	}
	for _, n := range nodes {
		var node int
		if _, err := fmt.Sscanf(n.pnode.text, "pnode=%d", &node); err != nil || node >= len(s.topology.Nodes) {
			return nil, fmt.Errorf("xl: invalid pnode number: %q", n.pnode.text)
		}
		distances := strings.Split(strings.TrimPrefix(n.distances.text, "vdistances="), ",")
		for _, text := range distances {
			d, err := strconv.Atoi(text)
			if err != nil || d < 10 || d > 254 || len(distances) != len(nodes) {
				return nil, fmt.Errorf("xl: vdistances %q", n.distances.text)
			}
		}
		cells = append(cells, simCell{topology.NodeID(node), int(n.memory >> 20), n.vcpus})
		memory -= n.memory
	}
	if memory != 0 {
		return nil, errors.New("xl: maxmem and vnuma memory size mismatch")
	}
	return cells, nil
}

// work lets busy vCPUs run until now. Each is on the CPU of its affinity with the fewest others, and the vCPUs of a
// CPU take turns of equal length.
func (s *simulated) work(now time.Time) {
	elapsed := now.Sub(s.worked)
	if s.worked.IsZero() {
		elapsed = 0
	}
	s.worked = now
	type place struct {
		d *simDomain
		v int
	}
	on := map[topology.CPUID][]place{}
	for _, id := range s.ids() {
		d := s.domains[id]
		d.ran, d.cpu, d.running = append(d.ran, make([]time.Duration, len(d.hard)-len(d.ran))...),
			make([]topology.CPUID, len(d.hard)), make([]bool, len(d.hard))
		for v := range d.hard {
			may := effective(d.hard[v], s.pools[s.pool(d.pool)].CPUs)
			d.cpu[v], _ = may.First()
			if !d.busy || d.paused {
				continue
			}
			for c := range may.All() {
				if len(on[c]) < len(on[d.cpu[v]]) {
					d.cpu[v] = c
				}
			}
			on[d.cpu[v]] = append(on[d.cpu[v]], place{d, v})
		}
	}
	for _, all := range on {
		for i, p := range all {
			p.d.ran[p.v] += elapsed / time.Duration(len(all))
			p.d.running[p.v] = i == int(now.Unix()/int64(Between.Seconds()))%len(all)
		}
	}
}

// state is what xl prints about a vCPU.
func (d *simDomain) state(v int) string {
	switch {
	case d.running[v]:
		return "r--"
	case d.busy || d.paused:
		return "---"
	}
	return "-b-"
}

func newSimulated(t topology.Topology) *simulated {
	return &simulated{pools: []inventory.Pool{{Name: "Pool-0", Scheduler: "credit2", CPUs: t.CPUSet()}},
		topology: t, next: 1, store: map[string]string{}, failing: map[string]error{},
		domains: map[int]*simDomain{0: {name: "Domain-0", memory: 1024, hard: make([]topology.CPUSet, 2),
			soft: make([]topology.CPUSet, 2), pool: "Pool-0"}}}
}

func (s *simulated) fail(command string, status int, said string) ([]byte, error) {
	return nil, &FailedError{Command: command, Status: status, Said: said}
}

func (s *simulated) run(ctx context.Context, program string, args ...string) ([]byte, error) {
	line := strings.Join(append([]string{program}, args...), " ")
	if s.hangs != nil && s.hangs(line) {
		<-ctx.Done()
	}
	if line == "xl vcpu-list" {
		time.Sleep(s.slow)
	}
	if s.gate != nil && strings.HasPrefix(line, "xl migrate") {
		<-s.gate
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.calls = append(s.calls, line)
	if s.before != nil {
		s.before(line)
	}
	for prefix, err := range s.failing {
		if strings.HasPrefix(line, prefix) {
			return nil, err
		}
	}
	switch program {
	case "xl":
		return s.xl(line, args)
	case "sh": // the transport of a route
		return s.peer.run(ctx, unquoted(args[4]), unquotedAll(args[5:])...)
	case "numavisor":
		return s.captured()
	case "xenstore-ls":
		return s.list(args[1])
	case "xenstore-write":
		for i := 0; i+1 < len(args); i += 2 {
			s.store[args[i]] = args[i+1]
		}
		return nil, nil
	case "xenstore-rm":
		maps.DeleteFunc(s.store, func(k, _ string) bool { return strings.HasPrefix(k, args[0]+"/") })
		return nil, nil
	}
	return nil, fmt.Errorf("%s %w", program, ErrNoTool)
}

func (s *simulated) list(folder string) ([]byte, error) {
	var out strings.Builder
	for _, k := range slices.Sorted(maps.Keys(s.store)) {
		if strings.HasPrefix(k, folder+"/") {
			fmt.Fprintf(&out, "%s = %q\n", k, s.store[k])
		}
	}
	if out.Len() == 0 {
		return s.fail("xenstore-ls", 1, "No such file or directory")
	}
	return []byte(out.String()), nil
}

func (s *simulated) ids() []int { return slices.Sorted(maps.Keys(s.domains)) }

func (s *simulated) xl(line string, args []string) ([]byte, error) {
	var out strings.Builder
	switch args[0] {
	case "list":
		if args[1] == "-l" {
			return s.configs(args[2:]...)
		}
		if args[1] == "-v" {
			return s.verbose(), nil
		}
		out.WriteString("Name                                        ID   Mem VCPUs\tState\tTime(s)         Cpupool         NODE Affinity\n")
		for _, id := range s.ids() {
			d := s.domains[id]
			fmt.Fprintf(&out, "%-40s %5d %5d %5d     %s  %8.1f%16s %s\n", d.name, id, d.memory, len(d.hard),
				d.states(), 1.5, d.pool, "all")
		}
	case "info":
		out.WriteString("xen_scheduler          : credit2\nxen_commandline        : placeholder " + s.booted + "\n")
	case "vcpu-list":
		out.WriteString("Name                                ID  VCPU   CPU State   Time(s) Affinity (Hard / Soft)\n")
		s.work(time.Now())
		for _, id := range s.ids() {
			for v := range s.domains[id].hard {
				d := s.domains[id]
				fmt.Fprintf(&out, "%-32s %5d %5d %5d   %s %9.1f  %s / %s\n", d.name, id, v, d.cpu[v], d.state(v),
					d.ran[v].Seconds(), all(d.hard[v]), all(d.soft[v]))
			}
		}
	case "cpupool-list":
		return s.listPools(len(args) > 1), nil
	case "cpupool-rename", "cpupool-destroy", "cpupool-create", "cpupool-cpu-remove", "cpupool-cpu-add",
		"cpupool-migrate":
		return s.changePool(line, args)
	case "debug-keys":
		s.now++
		s.dumps = append(s.dumps, s.dump())
	case "dmesg":
		out.WriteString("(XEN) Xen version 4.17\n" + strings.Join(s.dumps, ""))
	case "create":
		return s.create(args[len(args)-1])
	case "destroy":
		id, _ := strconv.Atoi(args[1])
		if s.domains[id] == nil {
			return s.fail(line, 1, args[1]+" is an invalid domain identifier (rc=-6)")
		}
		delete(s.domains, id)
	case "shutdown":
		id, _ := strconv.Atoi(args[1])
		if s.domains[id] == nil {
			return s.fail(line, 1, args[1]+" is an invalid domain identifier (rc=-6)")
		}
		if !s.deaf {
			delete(s.domains, id)
		}
	case "rename", "resume":
		return s.resume(line, args)
	case "vcpu-pin":
		return s.pin(line, args)
	case "migrate":
		return s.migrate(args)
	default:
		return s.fail(line, 2, "command not implemented: "+args[0])
	}
	return []byte(out.String()), nil
}

// states are the letters of a domain's state.
func (d *simDomain) states() string {
	switch {
	case d.ending != "":
		return d.ending
	case d.suspended:
		return "---ss-"
	case d.paused:
		return "-bp---"
	}
	return "-b----"
}

// verbose is the answer to xl list -v.
func (s *simulated) verbose() []byte {
	out := []byte("Name                                        ID   Mem VCPUs\tState\tTime(s)   UUID" +
		"                            Reason-Code\tSecurity Label\n")
	for _, id := range s.ids() {
		d, reason := s.domains[id], "-"
		if d.suspended {
			reason = "2"
		}
		uuid := d.uuid
		if uuid == "" {
			uuid = "00000000-0000-0000-0000-000000000000"
		}
		out = fmt.Appendf(out, "%-40s %5d %5d %5d     %s  %8.1f %s %8s %16s\n", d.name, id, d.memory, len(d.hard),
			d.states(), 1.5, uuid, reason, "-")
	}
	return out
}

// resume is xl rename and xl resume.
func (s *simulated) resume(line string, args []string) ([]byte, error) {
	id, _ := strconv.Atoi(args[1])
	d := s.domains[id]
	switch {
	case args[0] == "resume" && s.old:
		return s.fail(line, 2, "command not implemented: resume")
	case d == nil:
		return s.fail(line, 1, args[1]+" is an invalid domain identifier (rc=-6)")
	case args[0] == "rename":
		d.name = args[2]
	default:
		d.suspended = false
	}
	return nil, nil
}

// runs returns the running programs named xl.
func (s *simulated) runs() ([]program, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.programs), nil
}

func all(set topology.CPUSet) string {
	if set.IsEmpty() {
		return "all"
	}
	return set.String()
}

func (s *simulated) configs(only ...string) ([]byte, error) {
	type object = map[string]any
	var list []object
	for _, id := range s.ids() {
		d := s.domains[id]
		if len(only) > 0 && only[0] != strconv.Itoa(id) || d.foreign {
			continue
		}
		create := object{"type": "pvh", "name": d.name}
		if d.uuid != "" {
			create["uuid"] = d.uuid
		}
		build := object{"max_vcpus": len(d.hard), "max_memkb": d.memory << 10, "target_memkb": d.memory << 10}
		var virtual []object
		for _, c := range d.cells {
			virtual = append(virtual, object{"memkb": c.memory << 10, "pnode": c.node, "vcpus": c.vcpus.IDs()})
		}
		if virtual != nil {
			build["vnuma_nodes"] = virtual
		}
		more := object{}
		if err := json.Unmarshal([]byte("{"+d.config+"}"), &more); err != nil {
			return nil, err
		}
		if b, ok := more["b_info"].(object); ok {
			maps.Copy(build, b)
		}
		whole := maps.Clone(more)
		whole["c_info"], whole["b_info"] = create, build
		list = append(list, object{"domid": id, "config": whole})
	}
	return json.MarshalIndent(list, "", "    ")
}

func (s *simulated) dump() string {
	var out strings.Builder
	fmt.Fprintf(&out, "(XEN) 'u' pressed -> dumping numa info (now = %d)\n", s.now)
	out.WriteString("(XEN) Memory location of each domain:\n")
	for _, id := range s.ids() {
		d := s.domains[id]
		fmt.Fprintf(&out, "(XEN) Domain %d (total: %d):\n", id, d.memory*256)
		for i := range s.topology.Nodes {
			fmt.Fprintf(&out, "(XEN)     Node %d: %d\n", s.topology.Nodes[i].ID, d.pages(s.topology.Nodes[i].ID))
		}
	}
	return out.String()
}

// migrate is xl migrate to the same host: -s "" -C FILE ID COMMAND.
func (s *simulated) migrate(args []string) ([]byte, error) {
	id, _ := strconv.Atoi(args[5])
	old := s.domains[id]
	if args[6] != "xl migrate-receive" {
		return s.leave(id, args[4])
	}
	if old == nil || args[1] != "-s" || args[2] != "" || args[3] != "-C" || args[6] != "xl migrate-receive" {
		return s.fail("xl migrate", 1, strings.Join(args, " "))
	}
	delete(s.domains, id)
	next := s.next
	if _, err := s.create(args[4]); err != nil {
		s.domains[id] = old
		return s.fail("xl migrate", 1, "Migration failed, resuming at sender.")
	}
	text, _ := os.ReadFile(args[4])
	s.migrated = string(text)
	c, _ := ParseConfig(text)
	if uuid, ok := c.get("uuid"); ok {
		s.domains[next].uuid = uuid.text
	}
	return nil, nil
}

func unquoted(word string) string {
	return strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(word, "'"), "'"), `'\''`, "'")
}

func unquotedAll(words []string) (all []string) {
	for _, w := range words {
		all = append(all, unquoted(w))
	}
	return all
}

// leave is xl migrate to the peer. It may end at each point of xl's protocol: "refused" before the copy, "copy" with a
// copy left, "unheard" once the copy runs, "away" between the renaming here and the start there, "both" by a fault that
// xl excludes, "silent" like unheard, and the peer no longer answers, "odd" without an error or an effect.
func (s *simulated) leave(id int, file string) ([]byte, error) {
	text, _ := os.ReadFile(file)
	s.migrated = string(text)
	d := s.domains[id]
	failed := func(said string) ([]byte, error) { return s.fail("xl migrate", 1, said) }
	if s.ends == "refused" {
		return failed("Migration failed, resuming at sender.")
	}
	if s.ends == "odd" {
		return nil, nil
	}
	s.peer.mu.Lock()
	defer s.peer.mu.Unlock()
	next := s.peer.next
	if _, err := s.peer.create(file); err != nil {
		return failed("Migration failed, resuming at sender.")
	}
	there := s.peer.domains[next]
	there.uuid = d.uuid
	switch s.ends {
	case "copy":
		there.name += incoming
		there.paused = true
		return failed("Migration failed, resuming at sender.")
	case "away":
		delete(s.peer.domains, next)
		d.name += migratedAway
		d.suspended = true
		return failed("** Migration failed during final handshake **")
	case "unheard", "silent":
		d.name += migratedAway
		d.suspended = true
		s.peer.failing["xl"] = map[bool]error{true: ErrHangs}[s.ends == "silent"]
		if s.ends == "unheard" {
			delete(s.peer.failing, "xl")
		}
		return failed("** Migration failed during final handshake **")
	case "both":
		return failed("Migration failed, resuming at sender.")
	}
	delete(s.domains, id)
	return nil, nil
}

func (s *simulated) create(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	c, err := ParseConfig(text)
	if err != nil {
		return s.fail("xl create", 1, "Failed to parse config: Invalid argument")
	}
	spec, err := c.Spec(&s.topology)
	if err != nil {
		return s.fail("xl create", 1, err.Error())
	}
	for _, d := range s.domains {
		if d.name == spec.Name {
			return s.fail("xl create", 3, "Domain with name already exists")
		}
	}
	d := &simDomain{name: spec.Name, memory: int(spec.Memory >> 20), pool: "Pool-0",
		uuid: fmt.Sprintf("%08x-0000-4000-8000-%012x", s.next, s.next)}
	if d.cells, err = s.virtualNodes(c, spec.Memory); err != nil {
		return s.fail("xl create", 1, err.Error())
	}
	if uuid, ok := c.get("uuid"); ok {
		d.uuid = uuid.text
	}
	hard, _ := c.get("cpus")
	for v := range spec.VCPUs {
		var pin topology.CPUSet
		switch hard.is {
		case isList:
			pin = topology.MustParseSet[topology.CPUID](hard.list[v].text)
		case isString:
			pin = topology.MustParseSet[topology.CPUID](hard.text)
		case isNone, isNumber:
		}
		d.hard, d.soft = append(d.hard, pin), append(d.soft, pin)
	}
	d.config = devicesOf(c)
	if first, ok := d.hard[0].First(); ok {
		cpu, _ := s.topology.CPU(first)
		d.node = cpu.Node
	}
	s.domains[s.next] = d
	s.next++
	return nil, nil
}

// devicesOf returns the disks and network cards of a configuration as xl list -l has them.
func devicesOf(c *Config) string {
	disks, _ := c.get("disk")
	cards, _ := c.get("vif")
	var parts, each []string
	for _, d := range disks.list {
		_, path, _ := strings.Cut(d.text, "target=")
		write := map[bool]string{true: `, "readwrite": 1`}[strings.Contains(d.text, "access=rw")]
		each = append(each, fmt.Sprintf(`{"pdev_path": %q%s}`, path, write))
	}
	if len(each) > 0 {
		parts = append(parts, `"disks": [`+strings.Join(each, ", ")+"]")
	}
	if n := len(cards.list); n > 0 {
		parts = append(parts, `"nics": [`+strings.Join(slices.Repeat([]string{"{}"}, n), ", ")+"]")
	}
	return strings.Join(parts, ", ")
}

func (s *simulated) pin(line string, args []string) ([]byte, error) {
	id, _ := strconv.Atoi(args[1])
	v, _ := strconv.Atoi(args[2])
	d := s.domains[id]
	if d == nil || v >= len(d.hard) {
		return s.fail(line, 1, "Could not set affinity for vcpu")
	}
	for i, to := range []*topology.CPUSet{&d.hard[v], &d.soft[v]} {
		set := topology.CPUSet{}
		if args[3+i] != "all" {
			set = topology.MustParseSet[topology.CPUID](args[3+i])
		}
		if i == 0 && !set.IsEmpty() && !set.Intersects(s.pools[s.pool(d.pool)].CPUs) || !set.SubsetOf(s.topology.CPUSet()) {
			return s.fail(line, 1, "Could not set affinity for vcpu `"+args[2]+"': Invalid argument")
		}
		*to = set
	}
	return nil, nil
}

func (s *simulated) pool(name string) int {
	return slices.IndexFunc(s.pools, func(p inventory.Pool) bool { return p.Name == name })
}

func (s *simulated) in(pool string) (all []*simDomain) {
	for _, id := range s.ids() {
		if s.domains[id].pool == pool {
			all = append(all, s.domains[id])
		}
	}
	return all
}

func (s *simulated) listPools(cpus bool) []byte {
	out := []byte("Name               CPUs   Sched     Active   Domain count\n")
	if cpus {
		out = []byte("Name               CPU list\n")
	}
	for _, p := range s.pools {
		if cpus {
			out = fmt.Appendf(out, "%-19s%s\n", p.Name, p.CPUs)
		} else {
			out = fmt.Appendf(out, "%-19s%3d%9s       y       %4d\n", p.Name, p.CPUs.Len(), p.Scheduler, len(s.in(p.Name)))
		}
	}
	return out
}

// changePool obeys Xen's rules: a pool with domains has a CPU, CPUs are in one pool at most, and a change resets
// hard affinities that are outside.
func (s *simulated) changePool(line string, args []string) ([]byte, error) {
	if args[0] == "cpupool-create" {
		var p inventory.Pool
		for _, a := range args[1:] {
			key, value, _ := strings.Cut(a, "=")
			value = strings.Trim(value, "\"")
			switch key {
			case "name":
				p.Name = value
			case "sched":
				p.Scheduler = value
			case "cpus":
				p.CPUs = topology.MustParseSet[topology.CPUID](value)
			}
		}
		if s.pool(p.Name) >= 0 || !p.CPUs.SubsetOf(s.freeCPUs()) {
			return s.fail(line, 1, "cpu not free")
		}
		s.pools = append(s.pools, p)
		return nil, nil
	}
	name := args[1]
	if args[0] == "cpupool-migrate" {
		name = args[2]
	}
	i := s.pool(name)
	if i < 0 {
		return s.fail(line, 1, "unknown cpupool "+name)
	}
	switch args[0] {
	case "cpupool-rename":
		for _, d := range s.in(name) {
			d.pool = args[2]
		}
		s.pools[i].Name = args[2]
	case "cpupool-destroy":
		if len(s.in(name)) > 0 {
			return s.fail(line, 1, "Can't destroy cpupool: Device or resource busy")
		}
		s.pools = slices.Delete(s.pools, i, i+1)
	case "cpupool-cpu-remove":
		rest := s.pools[i].CPUs.Minus(topology.MustParseSet[topology.CPUID](args[2]))
		if rest.IsEmpty() && len(s.in(name)) > 0 {
			return s.fail(line, 1, "some cpus may have not or only partially been removed from '"+name+"'")
		}
		s.pools[i].CPUs = rest
		s.resetAffinities(s.in(name), rest)
	case "cpupool-cpu-add":
		more := topology.MustParseSet[topology.CPUID](args[2])
		if !more.SubsetOf(s.freeCPUs()) {
			return s.fail(line, 1, "cpu not free")
		}
		s.pools[i].CPUs = s.pools[i].CPUs.Union(more)
	case "cpupool-migrate":
		id, _ := strconv.Atoi(args[1])
		s.domains[id].pool = name
		s.resetAffinities([]*simDomain{s.domains[id]}, topology.CPUSet{})
	}
	return nil, nil
}

// resetAffinities widens hard affinities that allow none of the CPUs.
func (s *simulated) resetAffinities(domains []*simDomain, cpus topology.CPUSet) {
	for _, d := range domains {
		for v := range d.hard {
			if !d.hard[v].Intersects(cpus) {
				d.hard[v] = topology.CPUSet{}
			}
		}
	}
}

func (s *simulated) freeCPUs() topology.CPUSet {
	free := s.topology.CPUSet()
	for _, p := range s.pools {
		free = free.Minus(p.CPUs)
	}
	return free
}
