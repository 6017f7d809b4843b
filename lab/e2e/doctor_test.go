package e2e_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/decide/diagnose"
	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/labtest"
	"github.com/numavisor/numavisor/lab/rotate"
)

// findings runs the doctor and returns its findings by rule.
func (l *labHost) findings(t *testing.T, flags ...string) map[string][]diagnose.Finding {
	t.Helper()
	var d struct {
		Findings []diagnose.Finding `json:"findings"`
	}
	r := l.must(t, append([]string{"doctor", "-o", "json"}, flags...)...)
	if err := json.Unmarshal([]byte(r.stdout), &d); err != nil {
		t.Fatalf("%v in %s", err, r.stdout)
	}
	found := map[string][]diagnose.Finding{}
	for _, f := range d.Findings {
		found[f.Rule] = append(found[f.Rule], f)
	}
	return found
}

func rulesOf(found map[string][]diagnose.Finding) (names []string) {
	for rule := range found {
		names = append(names, rule)
	}
	slices.Sort(names)
	return names
}

// Faults of VMs on a real host: each is found on its VM, and no longer found after
// it is gone.
func TestLabDoctorFindsFaultsOfGuests(t *testing.T) {
	l := boot(t, "square4")
	quiet := rulesOf(l.findings(t))
	cells := "<numa><cell id='0' cpus='0' memory='32' unit='MiB'/><cell id='1' cpus='1' memory='32' unit='MiB'/></numa>"
	for i, c := range []struct {
		rule   string
		guests []foreign
	}{
		{"preallocated-unbound", []foreign{{name: "f", memoryMiB: 64, vcpus: 1}}},
		{"memory-far", []foreign{{name: "f", memoryMiB: 64, vcpus: 1, numatune: "<memory mode='strict' " +
			"nodeset='3'/>", cputune: "<vcpupin vcpu='0' cpuset='0-1'/>"}}},
		// on demand: where QEMU may not run it cannot take memory at start
		{"helpers-far", []foreign{{name: "f", memoryMiB: 64, vcpus: 1, onDemand: true, numatune: "<memory " +
			"mode='preferred' nodeset='0'/>", cputune: "<vcpupin vcpu='0' cpuset='0-1'/><emulatorpin cpuset='6-7'/>"}}},
		{"exclusive-overlap", []foreign{{name: "f", memoryMiB: 64, vcpus: 1, cputune: "<vcpupin vcpu='0' " +
			"cpuset='4'/>"}, {name: "g", memoryMiB: 64, vcpus: 1, cputune: "<vcpupin vcpu='0' cpuset='4'/>"}}},
		{"restrictive-memnodes", []foreign{{name: "f", memoryMiB: 64, vcpus: 2, cells: cells,
			numatune: "<memory mode='restrictive' nodeset='0-1'/><memnode cellid='0' mode='restrictive' " +
				"nodeset='0'/><memnode cellid='1' mode='restrictive' nodeset='1'/>"}}},
		{"numa-hidden", []foreign{{name: "f", memoryMiB: 64, vcpus: 4}}},
		{"vcpus-crowded", []foreign{{name: "f", memoryMiB: 64, vcpus: 4, numatune: "<memory mode='strict' " +
			"nodeset='0'/>", cputune: "<vcpupin vcpu='0' cpuset='0-1'/><vcpupin vcpu='1' cpuset='0-1'/><vcpupin " +
			"vcpu='2' cpuset='0-1'/><vcpupin vcpu='3' cpuset='0-1'/>"}}},
		{"cells-contradicted", []foreign{{name: "f", memoryMiB: 64, vcpus: 2, cells: cells,
			numatune: "<memory mode='strict' nodeset='0-1'/><memnode cellid='0' mode='strict' " +
				"nodeset='0'/><memnode cellid='1' mode='strict' nodeset='0'/>"}}},
		{"node-over-bound", []foreign{{name: "f", memoryMiB: 600, vcpus: 1, numatune: "<memory mode='strict' " +
			"nodeset='2'/>", onDemand: true},
			{name: "g", memoryMiB: 600, vcpus: 1, numatune: "<memory mode='strict' nodeset='2'/>", onDemand: true}}},
	} {
		if i >= 2 && !rotate.Turn(i) {
			continue
		}
		t.Run(c.rule, func(t *testing.T) {
			l.startAllForeign(t, c.guests...)
			for _, g := range c.guests {
				defer l.sh(t, "virsh -q destroy "+g.name)
			}
			found := l.findings(t)
			if len(found[c.rule]) == 0 {
				t.Fatalf("not found; found were %v", rulesOf(found))
			}
			for _, f := range found[c.rule] {
				if len(f.Evidence) == 0 || f.Effect == "" || f.Fix == "" {
					t.Errorf("without evidence, effect or fix: %+v", f)
				}
			}
		})
	}
	if diff := cmp.Diff(quiet, rulesOf(l.findings(t))); diff != "" {
		t.Errorf("with all faults gone it finds (-at first +now):\n%s", diff)
	}
}

// Faults of the host: found, corrected by --fix where that is safe, and gone.
func TestLabDoctorFixesTheHost(t *testing.T) {
	l := boot(t, "square4")
	l.must(t, "create", "--name", "d", "--vcpus", "2", "--memory", "64M", "--immediate", "--memory-binding",
		"restrictive")
	defer l.must(t, "delete", "d")
	for i, c := range []struct {
		rule, make, undo string
		fixed            bool
	}{
		{"numa-balancing-against-binding", "sysctl -qw kernel.numa_balancing=1", "sysctl -qw " +
			"kernel.numa_balancing=0", true},
		{"zone-reclaim", "sysctl -qw vm.zone_reclaim_mode=1", "sysctl -qw vm.zone_reclaim_mode=0", true},
		{"ksm-across-nodes", "echo 0 > /sys/kernel/mm/ksm/pages_to_scan; echo 1 > /sys/kernel/mm/ksm/run", "echo 2 " +
			"> /sys/kernel/mm/ksm/run; echo 1 > /sys/kernel/mm/ksm/merge_across_nodes", true},
		{"uneven-huge-pages", "echo 48 > " +
			"/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "echo 0 > " +
			"/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", false},
		{"drift", "virsh -q vcpupin d 0 $(virsh -q vcpupin d | awk '$1 == 0 {split($2, c, /[-,]/); print (c[1] + " +
			"2) % 8}') --live", "numavisor bind d >/dev/null", true},
		{"auto-placement-without-numad", "rm -f $(command -v numad); cat > /tmp/a.xml <<'X'\n<domain " +
			"type='kvm'><name>a</name><memory>65536</memory><vcpu placement='auto'>1</vcpu><os><type arch='x86_64' " +
			"machine='q35'>hvm</type></os></domain>\nX\nvirsh -q define /tmp/a.xml", "virsh -q undefine a " +
			"2>/dev/null || true", false},
	} {
		if always := c.rule == "drift"; !always && !rotate.Turn(i) {
			continue
		}
		t.Run(c.rule, func(t *testing.T) {
			l.sh(t, c.undo)
			if found := l.findings(t); len(found[c.rule]) > 0 {
				t.Fatalf("found before the fault exists: %+v", found[c.rule])
			}
			l.sh(t, c.make)
			defer l.sh(t, c.undo)
			if found := l.findings(t); len(found[c.rule]) == 0 {
				t.Fatalf("not found; found were %v", rulesOf(found))
			}
			r := l.numavisor(t, "doctor", "--fix")
			if r.status != 0 || c.fixed != strings.Contains(r.stdout, "fixed: "+c.rule) {
				t.Errorf("status %d; fixed, want %v:\n%s%s", r.status, c.fixed, r.stdout, r.stderr)
			}
			if found := l.findings(t); c.fixed != (len(found[c.rule]) == 0) {
				t.Errorf("fixed, want %v; it finds %+v", c.fixed, found[c.rule])
			}
		})
	}
}

// A memory-only node (CXL) that holds a guest's memory.
func TestLabDoctorSeesMemoryOnlyNodes(t *testing.T) {
	labtest.NeedsLab(t)
	rotate.Test(t, 3)
	t.Parallel()
	l := bootWith(t, "genoa-cxl", lab.Options{}) // booted in full, with this machine's root file system
	only := strings.TrimSpace(
		l.sh(
			t,
			"for n in /sys/devices/system/node/node[0-9]*; do [ -z \"$(cat $n/cpulist)\" ] && echo ${n##*node}; "+
				"done | tail -1",
		),
	)
	l.startForeign(t, foreign{name: "f", memoryMiB: 64, vcpus: 1})
	defer l.sh(t, "virsh -q destroy f")
	l.sh(t, "migratepages $(cat /run/libvirt/qemu/f.pid) all "+only) // as demotion does
	if found := l.findings(t); len(found["memory-only-node-used"]) == 0 {
		t.Errorf("not found; found were %v", rulesOf(found))
	}
	l.must(t, "bind", "f", "--nodes", "1")
	if found := l.findings(t); len(found["memory-only-node-used"]) > 0 {
		t.Errorf("still found after binding: %+v", found["memory-only-node-used"])
	}
	l.show(t, "f").memoryIn(t, 0.98)
}
