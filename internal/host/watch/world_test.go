package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// world is a host as files, whose figures a test changes over time.
type world struct {
	t     testing.TB
	root  linux.Root
	topo  topology.Topology
	now   time.Time
	ticks map[topology.CPUID][2]uint64 // busy, idle
	delay map[topology.CPUID]time.Duration
	vms   []*vm
}

// vm is a guest of a world.
type vm struct {
	guest   inventory.Guest
	threads []vmThread
	memory  topology.MemoryByNode
	huge    topology.MemoryByNode
}

type vmThread struct {
	tid       int
	name      string
	run, wait time.Duration
	cpu       topology.CPUID
}

// newWorld makes a host of nodes with the given number of CPUs and 64 GiB each.
func newWorld(t testing.TB, nodes, cpusEach int) *world {
	t.Helper()
	topo, err := topology.Synthetic(fmt.Sprintf("nodes:%d cores:%d memory:64G", nodes, cpusEach))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t:     t,
		root:  linux.Root(t.TempDir()),
		topo:  topo,
		now:   time.Unix(1e9, 0),
		ticks: map[topology.CPUID][2]uint64{},
		delay: map[topology.CPUID]time.Duration{},
	}
	for _, c := range topo.CPUs {
		w.ticks[c.ID] = [2]uint64{1000, 1000}
		w.delay[c.ID] = time.Second
	}
	for i := range topo.Nodes {
		n := &topo.Nodes[i]
		n.HugePages = []topology.HugePagePool{{Size: 2 * topology.MiB, Total: 100, Free: 40}}
		folder := fmt.Sprintf("sys/devices/system/node/node%d", n.ID)
		w.write(fmt.Sprintf("Node %d MemTotal: 67108864 kB\nNode %d MemFree: %d kB\n", n.ID, n.ID, 1024*(int(n.ID)+1)),
			folder, "meminfo")
		w.write("100\n", folder, "hugepages/hugepages-2048kB/nr_hugepages")
		w.write("40\n", folder, "hugepages/hugepages-2048kB/free_hugepages")
	}
	w.write("cpuset cpu io memory hugetlb pids\n", "sys/fs/cgroup/cgroup.controllers")
	w.write("some avg10=12.50 avg60=1.00 avg300=0.10 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
		"proc/pressure/cpu")
	w.write("some avg10=3.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=2.00 avg60=0.00 avg300=0.00 total=0\n",
		"proc/pressure/memory")
	w.write("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
		"proc/pressure/io")
	w.vmstat(1000, 10, 100)
	w.writeHost()
	return w
}

func (w *world) path(elements ...string) string {
	return filepath.Join(append([]string{string(w.root)}, elements...)...)
}

func (w *world) write(text string, elements ...string) {
	w.t.Helper()
	path := w.path(elements...)
	err := os.WriteFile(path, []byte(text), 0o644)
	if os.IsNotExist(err) {
		if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) vmstat(moved, failed, balancing int) {
	w.write(
		fmt.Sprintf(
			"nr_free_pages 1\npgmigrate_success %d\npgmigrate_fail %d\nnuma_pages_migrated %d\nthp_split_page 0\n",
			moved, failed, balancing),
		"proc/vmstat",
	)
}

// writeHost writes the files about CPUs.
func (w *world) writeHost() {
	var stat, sched strings.Builder
	fmt.Fprintln(&stat, "cpu  1 2 3 4 5 6 7 8 9 10")
	fmt.Fprintln(&sched, "version 15\ntimestamp 4294967296")
	for _, c := range w.topo.CPUs {
		fmt.Fprintf(&stat, "cpu%d %d 0 0 %d 0 0 0 0 0 0\n", c.ID, w.ticks[c.ID][0], w.ticks[c.ID][1])
		fmt.Fprintf(&sched, "cpu%d 0 0 0 0 0 0 123 %d 9\ndomain0 ff 1 2 3\n", c.ID, w.delay[c.ID])
	}
	fmt.Fprintln(&stat, "intr 1 2 3\nctxt 1\nbtime 1")
	w.write(stat.String(), "proc/stat")
	w.write(sched.String(), "proc/schedstat")
}

// add makes a guest of libvirt whose vCPUs run on the given CPUs.
func (w *world) add(name string, pid int, memory topology.MemoryByNode, cpus ...topology.CPUID) *vm {
	v := &vm{
		guest:  inventory.Guest{Name: name, PID: pid, State: "running"},
		memory: memory,
		huge:   topology.MemoryByNode{},
	}
	for _, amount := range memory {
		v.guest.Config.Memory += amount
	}
	v.guest.Config.VCPUs = len(cpus)
	v.threads = []vmThread{{tid: pid, name: "qemu-system-x86"}}
	for i, c := range cpus {
		v.threads = append(v.threads,
			vmThread{tid: pid + 1 + i, name: fmt.Sprintf("CPU %d/KVM", i), run: time.Second, wait: time.Second, cpu: c})
	}
	w.vms = append(w.vms, v)
	w.writeVM(v)
	for _, t := range v.threads {
		w.write("res:/\nmon:\n", fmt.Sprintf("proc/%d/cpu_resctrl_groups", t.tid))
	}
	return v
}

func (v *vm) group() string {
	return fmt.Sprintf("machine/qemu-%d-%s.libvirt-qemu", v.guest.PID, v.guest.Name)
}

func (w *world) writeVM(v *vm) {
	folder := fmt.Sprintf("proc/%d", v.guest.PID)
	w.write("0::/"+v.group()+"/emulator\n", folder, "cgroup")
	for _, t := range v.threads {
		task := fmt.Sprintf("%s/task/%d", folder, t.tid)
		w.write(t.name+"\n", task, "comm")
		w.write(fmt.Sprintf("%d %d 7\n", t.run, t.wait), task, "schedstat")
		w.write(
			fmt.Sprintf(
				"%d (%s) S 1 258 258 0 -1 138412224 1493 0 0 0 487 175 0 0 20 0 6 0 1404 625283072 42005 "+
					"18446744073709551615 94464781254656 94464787115093 140723636205248 0 0 0 2147219511 4096 "+
					"16963 1 0 0 -1 %d 0 0 0 371 0 94464790227192 94464795431344 94464866430976 140723636210274 "+
					"140723636211379 140723636211379 140723636211676 0\n",
				t.tid,
				t.name,
				t.cpu,
			),
			task,
			"stat",
		)
	}
	group := "sys/fs/cgroup/" + v.group()
	w.write("", group, "cgroup.procs")
	w.write("usage_usec 5000000\nuser_usec 1\nsystem_usec 1\n", group, "cpu.stat")
	w.write(numaStat(w.topo.Nodes, v.memory), group, "memory.numa_stat")
	w.write("total=0"+row(w.topo.Nodes, v.huge)+"\n", group, "hugetlb.2MB.numa_stat")
	w.write("total=0"+row(w.topo.Nodes, nil)+"\n", group, "hugetlb.1GB.numa_stat")
}

func row(nodes []topology.Node, amounts topology.MemoryByNode) string {
	var b strings.Builder
	for _, n := range nodes {
		fmt.Fprintf(&b, " N%d=%d", n.ID, amounts[n.ID])
	}
	return b.String()
}

// numaStat is memory.numa_stat with the rows of a real one.
func numaStat(nodes []topology.Node, memory topology.MemoryByNode) string {
	var b strings.Builder
	for _, name := range strings.Fields("anon file kernel_stack pagetables sec_pagetables shmem file_mapped " +
		"file_dirty file_writeback swapcached anon_thp file_thp shmem_thp inactive_anon active_anon inactive_file " +
		"active_file unevictable slab_reclaimable slab_unreclaimable workingset_refault_anon " +
		"workingset_refault_file workingset_activate_anon workingset_activate_file workingset_restore_anon " +
		"workingset_restore_file workingset_nodereclaim") {
		amounts := topology.MemoryByNode(nil)
		if name == "anon" {
			amounts = memory
		}
		b.WriteString(name + row(nodes, amounts) + "\n")
	}
	return b.String()
}

// watcher follows all guests of the world by the world's clock.
func (w *world) watcher(o Options) *Watcher {
	o.Root, o.Now = w.root, func() time.Time { return w.now }
	watcher := New(o)
	w.t.Cleanup(func() {
		if err := watcher.Close(); err != nil {
			w.t.Error(err)
		}
	})
	w.follow(watcher)
	return watcher
}

func (w *world) follow(watcher *Watcher) {
	var guests []inventory.Guest
	for _, v := range w.vms {
		guests = append(guests, v.guest)
	}
	watcher.Follow(guests, &w.topo)
}

// pass advances the clock, and makes each guest's vCPUs run and wait for parts
// of that time.
func (w *world) pass(d time.Duration, ran, waited float64) {
	w.now = w.now.Add(d)
	for _, v := range w.vms {
		for i := range v.threads {
			if t := &v.threads[i]; t.tid != v.guest.PID {
				t.run += time.Duration(ran * float64(d))
				t.wait += time.Duration(waited * float64(d))
			}
		}
		w.writeVM(v)
	}
}

const gib = topology.GiB

type byNode = topology.MemoryByNode
