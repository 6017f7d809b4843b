package libvirt

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"libvirt.org/go/libvirt"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// TestLab checks on a real multi-node host what QEMU and libvirt do with the XML
// written here. It runs inside of the lab: at least 4 nodes with 2 CPUs
// each, numbered in order, a kernel at /lab/vmlinuz, libvirtd installed but
// not running.
func TestLab(t *testing.T) {
	if os.Getenv("NUMAVISOR_LAB_INSIDE") != "1" {
		t.Skip("runs only inside the lab (NUMAVISOR_LAB_INSIDE=1): it starts libvirtd and real guests")
	}
	lab := &lab{t: t}
	lab.startDaemon()
	lab.driver = New("qemu:///system")
	defer lab.driver.Close()
	lab.growPools()
	for i, c := range labCases() {
		if c.rotates && !onTurn(i) {
			continue
		}
		t.Run(c.name, func(t *testing.T) { (&labGuest{lab: lab, T: t, c: c}).run() })
	}
	t.Run("calls", func(t *testing.T) { lab.calls(t) })
	t.Run("daemon restarts", func(t *testing.T) { lab.restart(t) })
	t.Run("daemon hangs", func(t *testing.T) { lab.hang(t) })
}

type lab struct {
	t      *testing.T
	driver *Driver
	daemon *exec.Cmd
}

func (l *lab) startDaemon() {
	l.daemon = exec.Command("libvirtd")
	if err := l.daemon.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		_ = l.daemon.Process.Kill()
		_ = l.daemon.Wait()
	})
	for range 240 {
		d := New("qemu:///system")
		_, err := d.Capabilities(within(l.t, 5*time.Second))
		if err == nil {
			d.Close()
			return
		}
		time.Sleep(250 * time.Millisecond)
	}
	l.t.Fatal("libvirtd does not answer")
}

// poolPages is the size of each pool of huge pages: the largest VM needs 20.
const poolPages = 40

// growPools gives nodes 1 and 2 a pool. The kernel stops adding pages when the
// thread gets a signal, by which Go preempts threads: growPools then asks again.
func (l *lab) growPools() {
	for _, node := range []int{1, 2} {
		pool := fmt.Sprintf("/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages", node)
		for got, before := 0, -1; got < poolPages; {
			if got == before {
				l.t.Fatalf("node %d: the kernel gives %d huge pages of %d", node, got, poolPages)
			}
			before = got
			if err := os.WriteFile(pool, []byte(strconv.Itoa(poolPages)), 0o644); err != nil {
				l.t.Fatal(err)
			}
			text, err := os.ReadFile(pool)
			if err != nil {
				l.t.Fatal(err)
			}
			if got, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
				l.t.Fatal(err)
			}
		}
	}
}

// labCase is one guest and its expected state.
type labCase struct {
	name     string
	change   func(*guest.Placement)
	policies []string // numa_maps policy of each memory piece, in cell order
	mems     string   // cpuset.mems of every thread group
	nodes    []string // "1" or "1,2": nodes of the preallocated pages of each piece; empty: none allocated
	rotates  bool     // similar cases exist: it runs in one of three landings
}

func labCases() []labCase {
	mode := func(m guest.MemoryMode) func(*guest.Placement) {
		return func(p *guest.Placement) {
			p.MemoryMode = m
			if m == guest.MemoryInterleave {
				for i := range p.Cells {
					p.Cells[i].Nodes = p.Nodes
				}
			}
		}
	}
	with := func(changes ...func(*guest.Placement)) func(*guest.Placement) {
		return func(p *guest.Placement) {
			for _, c := range changes {
				c(p)
			}
		}
	}
	immediate := func(p *guest.Placement) { p.Immediate = true }
	huge := func(p *guest.Placement) { p.PageSize = 2 * topology.MiB }
	anonymous := func(p *guest.Placement) { p.Movable = false }
	one := func(p *guest.Placement) { // one hidden cell on node 1
		p.Cells[0].Memory += p.Cells[1].Memory
		p.Cells[0].VCPUs = p.Cells[0].VCPUs.Union(p.Cells[1].VCPUs)
		p.Cells, p.Visible, p.Nodes = p.Cells[:1], false, p.Cells[0].Nodes
		p.Cells[0].Distances = nil
		for i := range p.VCPUs {
			p.VCPUs[i].CPUs = cpus("2-3")
		}
		p.Emulator = cpus("2-3")
	}
	wide := func(p *guest.Placement) { p.Nodes = nodeSet("1-2") }
	spread := func(p *guest.Placement) { p.Nodes, p.Cells[0].Nodes = nodeSet("1-2"), nodeSet("1-2") }
	hidden := func(p *guest.Placement) {
		p.Visible = false
		p.Cells[0].Distances, p.Cells[1].Distances = nil, nil
	}
	farEmulator := func(p *guest.Placement) { p.Emulator = cpus("0-1") }
	const preferred, strict, interleave, restrictive, none = guest.MemoryPreferred, guest.MemoryStrict, guest.MemoryInterleave, guest.MemoryRestrictive, guest.MemoryNone
	return []labCase{
		{"two cells preferred", mode(preferred), []string{"prefer:1", "prefer:2"}, "1-2", nil, true},
		{"two cells preferred immediate", with(mode(preferred), immediate), []string{"prefer:1", "prefer:2"}, "1-2",
			[]string{"1", "2"}, true},
		{"two cells preferred immediate anonymous", with(mode(preferred), immediate, anonymous),
			[]string{"prefer:1", "prefer:2"}, "1-2", []string{"1", "2"}, true},
		{"two cells preferred huge pages", with(mode(preferred), huge), []string{"prefer:1", "prefer:2"}, "1-2",
			[]string{"1", "2"}, true},
		{"two cells strict", mode(strict), []string{"bind:1", "bind:2"}, "1-2", nil, true},
		{"two cells strict immediate", with(mode(strict), immediate), []string{"bind:1", "bind:2"}, "1-2",
			[]string{"1", "2"}, false},
		{"two cells strict huge pages", with(mode(strict), huge), []string{"bind:1", "bind:2"}, "1-2",
			[]string{"1", "2"}, true},
		{"two cells strict immediate far emulator", with(mode(strict), immediate, farEmulator),
			[]string{"bind:1", "bind:2"}, "1-2", []string{"1", "2"}, true},
		{"two cells interleave immediate", with(mode(interleave), immediate),
			[]string{"interleave:1-2", "interleave:1-2"}, "1-2", []string{"1,2", "1,2"}, false},
		{"two cells restrictive", mode(restrictive), []string{"default", "default"}, "1-2", nil, true},
		{"two cells none", mode(none), []string{"default", "default"}, "", nil, true},
		{"two hidden cells preferred", with(mode(preferred), hidden), []string{"bind:1-2"}, "1-2", nil, false},
		{"one cell preferred", with(one, mode(preferred)), []string{"bind:1"}, "1", nil, true},
		{"one cell preferred immediate", with(one, mode(preferred), immediate), []string{"bind:1"}, "1", []string{"1"},
			false},
		{"one cell preferred within two nodes", with(one, wide, mode(preferred), immediate), []string{"prefer:1"},
			"1-2", []string{"1"}, true},
		{"one cell strict huge pages", with(one, mode(strict), huge), []string{"bind:1"}, "1", []string{"1"}, false},
		{"one cell interleave immediate", with(one, spread, mode(interleave), immediate), []string{"interleave:1-2"},
			"1-2", []string{"1,2"}, true},
		{"one cell restrictive immediate", with(one, mode(restrictive), immediate), []string{"default"}, "1",
			[]string{"1"}, false},
		{"one cell none", with(one, mode(none)), []string{"default"}, "", nil, true},
	}
}

// onTurn reports whether a case that rotates runs this time: lab/rotate, which
// this package may not import, gives the same answer.
func onTurn(i int) bool {
	part, err := strconv.Atoi(os.Getenv("NUMAVISOR_LAB_PART"))
	return err != nil || i%3 == part%3
}

// labGuest is a guest made from a case.
type labGuest struct {
	*testing.T
	lab *lab
	c   labCase
	p   guest.Placement
	xml []byte
}

const labMemory = 40 * topology.MiB // no other mapping of QEMU has this size or its half

// make writes the guest's XML: 2 vCPUs on nodes 1 and 2, as the case changes it.
func (g *labGuest) make() {
	var s guest.Spec
	s, g.p = newGuest(2, labMemory)
	s.Name = strings.ReplaceAll(g.c.name, " ", "-")
	g.p.Guest, g.p.Emulator = s.Name, cpus("2-5")
	g.p.VCPUs[0].CPUs, g.p.VCPUs[1].CPUs = cpus("2-3"), cpus("4-5")
	g.c.change(&g.p)
	s.PageSize = g.p.PageSize
	var err error
	g.xml, err = DomainXML(
		Metadata{Spec: s, Placement: g.p},
		Machine{
			Kernel:    "/lab/vmlinuz",
			Cmdline:   "console=ttyS0 quiet",
			SerialLog: filepath.Join(g.TempDir(), "serial"),
		},
	)
	if err != nil {
		g.Fatal(err)
	}
}

func (g *labGuest) run() {
	g.make()
	d, ctx := g.lab.driver, within(g.T, 3*time.Minute)
	if err := d.Create(ctx, g.p.Guest, g.xml, CreateOptions{Paused: true}); err != nil {
		g.Fatalf("%v\n%s", err, g.xml)
	}
	defer func() { _ = call(ctx, d, g.p.Guest, (*libvirt.Domain).Destroy) }()
	seen, err := d.Guest(ctx, g.p.Guest)
	if err != nil || seen.State != "paused" || seen.PID == 0 || !seen.Managed {
		g.Fatalf("seen as %+v, %v", seen, err)
	}
	pieces := ramPieces(g.T, seen.PID)
	groups := threadGroups(g.T, seen.PID)
	g.Logf("%-42s %s | mems %s", g.c.name, strings.Join(texts(pieces), " | "), groups["vcpu0"].mems)
	if len(pieces) != len(g.c.policies) {
		g.Fatalf("%d pieces of memory, wanted %d", len(pieces), len(g.c.policies))
	}
	for i, want := range g.c.policies {
		if pieces[i].policy != want {
			g.Errorf("piece %d has policy %s, not %s", i, pieces[i].policy, want)
		}
		if len(g.c.nodes) > 0 {
			g.checkNodes(pieces[i], g.c.nodes[i])
		}
	}
	for name, group := range groups {
		if group.mems != g.c.mems {
			g.Errorf("%s: cpuset.mems is %q, not %q", name, group.mems, g.c.mems)
		}
	}
	for _, v := range g.p.VCPUs {
		if got := groups["vcpu"+strconv.Itoa(int(v.ID))].cpus; got != v.CPUs.String() {
			g.Errorf("vCPU %d runs on %q, not %q", v.ID, got, v.CPUs)
		}
	}
	late := EmulatorPinIsLate(g.p)
	if got := groups["emulator"].cpus; (got == g.p.Emulator.String()) == late {
		g.Errorf("the emulator runs on %q; wanted %q, late: %v", got, g.p.Emulator, late)
	}
}

// checkNodes checks that a piece is completely on the given nodes, equally on
// each.
func (g *labGuest) checkNodes(p piece, want string) {
	total := 0
	for _, pages := range p.pages {
		total += pages
	}
	on := strings.Split(want, ",")
	if total == 0 {
		g.Errorf("nothing of it is allocated: %+v", p)
	}
	for _, node := range on {
		if pages := p.pages[node]; pages*len(on) < total-8 || pages*len(on) > total+8 {
			g.Errorf("node %s has %d of %d pages: %+v", node, pages, total, p)
		}
	}
}

// piece is a mapping that holds guest memory.
type piece struct {
	address uint64
	policy  string
	pages   map[string]int
}

func texts(pieces []piece) []string {
	var all []string
	for _, p := range pieces {
		all = append(all, fmt.Sprintf("%s %v", p.policy, p.pages))
	}
	return all
}

// ramPieces finds guest memory by size, in cell order: QEMU maps cell after
// cell, and the kernel places mappings downwards. The memfds' inode numbers are
// no guide: the kernel hands them out in batches per CPU.
func ramPieces(t *testing.T, pid int) []piece {
	t.Helper()
	sizes := map[uint64]uint64{}
	eachLine(t, fmt.Sprintf("/proc/%d/maps", pid), func(f []string) {
		var from, to uint64
		if _, err := fmt.Sscanf(f[0], "%x-%x", &from, &to); err == nil {
			sizes[from] = to - from
		}
	})
	var all []piece
	eachLine(t, fmt.Sprintf("/proc/%d/numa_maps", pid), func(f []string) {
		from, _ := strconv.ParseUint(f[0], 16, 64)
		if size := sizes[from]; size != uint64(labMemory) && size != uint64(labMemory)/2 {
			return
		}
		p := piece{address: from, policy: f[1], pages: map[string]int{}}
		for _, field := range f[2:] {
			if m := pagesOnNode.FindStringSubmatch(field); m != nil {
				p.pages[m[1]], _ = strconv.Atoi(m[2])
			}
		}
		all = append(all, p)
	})
	slices.SortFunc(all, func(a, b piece) int { return cmp.Compare(b.address, a.address) })
	return all
}

var pagesOnNode = regexp.MustCompile(`^N(\d+)=(\d+)$`)

func eachLine(t *testing.T, path string, do func(fields []string)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if f := strings.Fields(lines.Text()); len(f) > 1 {
			do(f)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

type threadGroup struct{ mems, cpus string }

// threadGroups reads the cpusets of the guest's emulator and vCPU groups.
func threadGroups(t *testing.T, pid int) map[string]threadGroup {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	top := filepath.Join("/sys/fs/cgroup",
		filepath.Dir(strings.TrimSpace(string(text[strings.Index(string(text), "::")+2:]))))
	groups := map[string]threadGroup{}
	for _, name := range []string{"emulator", "vcpu0", "vcpu1"} {
		read := func(file string) string {
			text, err := os.ReadFile(filepath.Join(top, name, file))
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(string(text))
		}
		groups[name] = threadGroup{read("cpuset.mems"), read("cpuset.cpus")}
	}
	return groups
}

// start creates a guest of a case through Driver.Start.
func (l *lab) start(t *testing.T, c labCase, transient bool) (*labGuest, int) {
	t.Helper()
	g := &labGuest{lab: l, T: t, c: c}
	g.make()
	ctx := within(t, 3*time.Minute)
	if err := l.driver.Start(ctx, definition(t, g.xml), transient); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.driver.Remove(within(t, time.Minute), g.p.Guest); err != nil && !errors.Is(err, guest.ErrNotFound) {
			t.Error(err)
		}
	})
	pid, err := l.driver.PID(g.p.Guest)
	if err != nil {
		t.Fatal(err)
	}
	return g, pid
}

// calls tests the calls that the simulated hypervisor lacks.
func (l *lab) calls(t *testing.T) {
	t.Helper()
	d, ctx := l.driver, within(t, 10*time.Minute)
	cases := map[string]labCase{}
	for _, c := range labCases() {
		cases[c.name] = c
	}
	t.Run("late emulator pin", func(t *testing.T) {
		g, pid := l.start(t, cases["two cells strict immediate far emulator"], true)
		if got := threadGroups(t, pid)["emulator"].cpus; got != "0-1" {
			t.Errorf("the emulator runs on %q", got)
		}
		if one, err := d.Find(ctx, g.p.Guest); err != nil || one.State != "running" {
			t.Errorf("%+v, %v", one, err)
		}
	})
	t.Run("pins and refusals", func(t *testing.T) {
		g, pid := l.start(t, cases["two cells preferred"], false)
		if err := errors.Join(d.PinVCPU(ctx, g.p.Guest, 1, cpus("6")), d.PinEmulator(ctx, g.p.Guest,
			cpus("7"))); err != nil {
			t.Fatal(err)
		}
		groups := threadGroups(t, pid)
		if groups["vcpu1"].cpus != "6" || groups["emulator"].cpus != "7" {
			t.Errorf("pinned: %+v", groups)
		}
		if err := d.TuneLive(ctx, g.p.Guest, nodeSet("3")); !errors.Is(err, guest.ErrRefused) {
			t.Errorf("changing a strict guest's nodes: %v", err)
		}
		if err := d.PinIOThread(ctx, g.p.Guest, 1, cpus("1")); err == nil {
			t.Error("pinned an I/O thread that does not exist")
		}
		l.configure(t, g)
	})
	t.Run("nodes of an unbound guest", func(t *testing.T) {
		g, pid := l.start(t, cases["one cell none"], true)
		for _, node := range []string{"2", "3"} {
			if err := d.TuneLive(ctx, g.p.Guest, nodeSet(node)); err != nil {
				t.Fatal(err)
			}
			if got := threadGroups(t, pid)["vcpu0"].mems; got != node {
				t.Errorf("cpuset.mems is %q, not %s", got, node)
			}
		}
		if err := call(ctx, d, g.p.Guest, (*libvirt.Domain).Destroy); err != nil {
			t.Fatal(err)
		}
		if err := d.PinVCPU(ctx, g.p.Guest, 0, cpus("1")); !errors.Is(err, guest.ErrNotFound) {
			t.Errorf("a guest that has vanished: %v", err)
		}
		if _, err := d.PID(g.p.Guest); !errors.Is(err, ErrNotRunning) {
			t.Errorf("its process: %v", err)
		}
	})
	t.Run("firmware variables", func(t *testing.T) { l.firmware(t) })
	t.Run("pool", func(t *testing.T) {
		if err := d.SetPages(ctx, 3, 2*topology.MiB, 7); err != nil {
			t.Fatal(err)
		}
		if free, err := d.FreePages(ctx, 3, 2*topology.MiB); err != nil || free != 7 {
			t.Errorf("%d free pages, %v", free, err)
		}
	})
}

// firmware checks that the variables of a guest's firmware survive Undefine, and not Remove.
func (l *lab) firmware(t *testing.T) {
	t.Helper()
	ctx := within(t, time.Minute)
	loader, variables := filepath.Join(t.TempDir(), "code.fd"), filepath.Join(t.TempDir(), "vars.fd")
	for _, path := range []string{loader, variables} {
		if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	define := func() {
		t.Helper()
		if err := l.driver.Define(ctx, "firm", fmt.Appendf(nil, `<domain type='qemu'><name>firm</name>
  <memory unit='MiB'>64</memory><features><acpi/></features><os><type arch='x86_64' machine='q35'>hvm</type>
  <loader readonly='yes' type='pflash'>%s</loader><nvram>%s</nvram></os></domain>`, loader, variables)); err != nil {
			t.Fatal(err)
		}
	}
	define()
	if err := l.driver.Undefine(ctx, "firm"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(variables); err != nil {
		t.Errorf("after Undefine: %v", err)
	}
	define()
	if err := l.driver.Remove(ctx, "firm"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(variables); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Remove: %v", err)
	}
}

// configure binds a stored configuration that libvirt has rewritten, and checks
// that binding it again changes nothing.
func (l *lab) configure(t *testing.T, g *labGuest) {
	t.Helper()
	d, ctx := l.driver, within(t, time.Minute)
	intent := Metadata{Spec: guest.Spec{Name: g.p.Guest, VCPUs: 2, Memory: labMemory}, Placement: g.p}
	if err := errors.Join(d.Record(ctx, g.p.Guest, intent), d.Configure(ctx, g.p.Guest, intent)); err != nil {
		t.Fatal(err)
	}
	stored, err := d.XML(ctx, g.p.Guest, Stored)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Rewrite(stored, g.p, intent)
	if err != nil {
		t.Fatal(err)
	}
	if text := mustParse(t, stored); !text.Config.Pins[1].Equal(cpus("4-5")) || text.Intent == nil {
		t.Errorf("stored pins are %v", text.Config.Pins)
	}
	if a, b := strings.Count(string(stored), "\n"), strings.Count(string(again), "\n"); a != b {
		t.Errorf("bound again it has %d lines instead of %d:\n%s", b, a, again)
	}
}

// restart: reads continue over a restart of the daemon, and the guest keeps running.
func (l *lab) restart(t *testing.T) {
	t.Helper()
	g, pid := l.start(t, labCases()[0], true)
	if err := l.daemon.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = l.daemon.Wait() // any exit status will do
	done := make(chan error, 1)
	start := time.Now()
	go func() {
		_, err := l.driver.Guest(within(t, 2*time.Minute), g.p.Guest)
		done <- err
	}()
	time.Sleep(time.Second)
	l.startDaemon()
	if err := <-done; err != nil {
		t.Errorf("a read begun while the daemon was away: %v", err)
	}
	t.Logf("answered after %v", time.Since(start).Round(100*time.Millisecond))
	if err := l.driver.PinVCPU(within(t, time.Minute), g.p.Guest, 0, cpus("2")); err != nil {
		t.Errorf("control after the restart: %v", err)
	}
	if now, err := l.driver.PID(g.p.Guest); err != nil || now != pid {
		t.Errorf("process %d was %d, %v", now, pid, err)
	}
}

// hang: a stopped daemon delays a call until its deadline and no longer, and a
// control call reports that its outcome is unknown.
func (l *lab) hang(t *testing.T) {
	t.Helper()
	g, _ := l.start(t, labCases()[0], true)
	if err := l.daemon.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, err := l.driver.List(within(t, 500*time.Millisecond))
	if !errors.Is(err, ErrTimeout) {
		t.Errorf("read: %v", err)
	}
	err = l.driver.PinVCPU(within(t, 500*time.Millisecond), g.p.Guest, 0, cpus("3"))
	if !errors.Is(err, ErrTimeout) || !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("control: %v", err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	if err := l.daemon.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := l.driver.List(within(t, time.Minute)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
