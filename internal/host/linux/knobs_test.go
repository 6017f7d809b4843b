package linux

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestSettingsOfCapturedHost(t *testing.T) {
	root, _ := captured(t, "host")
	k, gaps := root.Settings()
	if len(gaps) > 0 {
		t.Errorf("gaps %v", gaps)
	}
	k.Release = strings.SplitN(k.Release, "-", 2)[0]
	want := inventory.Kernel{
		Release:              "6.1.0",
		NUMABalancing:        "1",
		TransparentHugePages: "always",
		KSMRun:               "0",
		KSMAcrossNodes:       "1",
		ZoneReclaim:          "0",
		Demotion:             "false",
	}
	if diff := cmp.Diff(want, k); diff != "" {
		t.Error(diff)
	}
}

func TestSettingsSeesNumadAndUnreadableFiles(t *testing.T) {
	root := files(
		t,
		map[string]string{
			"proc/12/comm":                     "numad\n",
			"proc/13/comm":                     "numad2\n",
			"sys/kernel/mm/ksm/pages_shared":   "many\n",
			"sys/kernel/mm/ksm/run/oops":       "",
			"sys/fs/cgroup/cgroup.controllers": "",
		},
	)
	k, gaps := root.Settings()
	if !k.NumadRunning || !k.CgroupV2 || len(gaps) != 2 {
		t.Errorf("%+v, gaps %v", k, gaps)
	}
	if k, _ := files(t, map[string]string{"proc/13/comm": "numad2\n"}).Settings(); k.NumadRunning {
		t.Error("numad2 is not numad")
	}
}

func TestSettings_CpusetController(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		name, file, text string
		want             *bool
	}{
		{"v2", "sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb\n", &yes},
		{"v2 without it", "sys/fs/cgroup/cgroup.controllers", "cpu cpusets\n", &no},
		{"hybrid", "sys/fs/cgroup/unified/cgroup.controllers", "hugetlb\n", &no},
		{"v1", "sys/fs/cgroup/cpuset/cpuset.mems", "0\n", &no},
		{"no cgroups in a captured root", "proc/13/comm", "sh\n", nil},
	} {
		k, _ := files(t, map[string]string{c.file: c.text}).Settings()
		if diff := cmp.Diff(c.want, k.Cpusets); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

func TestSetKSMAcrossNodes_RestartsKSM(t *testing.T) {
	for _, run := range []string{"0", "1"} {
		root := files(t, map[string]string{fileKSMRun: run + "\n", fileKSMAcross: "1\n"})
		if err := root.SetKSMAcrossNodes(false); err != nil {
			t.Fatal(err)
		}
		now, _ := root.word(fileKSMRun)
		across, _ := root.word(fileKSMAcross)
		if now != run || across != "0" {
			t.Errorf("run %s before, %s now; merge_across_nodes %s", run, now, across)
		}
	}
	root := files(t, map[string]string{fileKSMAcross: "0\n"}) // no run file: touching it would fail
	if err := root.SetKSMAcrossNodes(false); err != nil {
		t.Errorf("SetKSMAcrossNodes did nothing, but failed: %v", err)
	}
}

func TestSetKSMAcrossNodes_RestartsKSMAfterAFailure(t *testing.T) {
	root := files(t, map[string]string{fileKSMRun: "1\n", fileKSMAcross + "/busy": ""}) // a folder cannot be written
	if err := root.SetKSMAcrossNodes(false); err == nil {
		t.Error("no file could be read, yet there was no error")
	}
	if run, _ := root.word(fileKSMRun); run != "1" {
		t.Errorf("KSM was left at run %q", run)
	}
}

func TestMigrationCounters(t *testing.T) {
	root, _ := captured(t, "host")
	m, err := root.Migrations()
	if err != nil || m.Success == 0 {
		t.Errorf("%+v, error %v", m, err)
	}
	if d := m.Since(m); d != (Migrations{}) {
		t.Errorf("difference to itself: %+v", d)
	}
	got, err := ParseVMStat([]byte("pgmigrate_success 10\npgmigrate_fail 1\nthp_migration_split 3\nother x\n"))
	if err != nil || got != (Migrations{Success: 10, Fail: 1, HugeSplit: 3}) {
		t.Errorf("%+v, error %v", got, err)
	}
	if _, err := ParseVMStat([]byte("pgmigrate_fail many\n")); err == nil {
		t.Error("a word passed as a counter")
	}
}

func poolFiles(total, free string) map[string]string {
	folder := poolFolder(2, 2*mib)
	return map[string]string{
		folder + "/nr_hugepages":                                      total,
		folder + "/free_hugepages":                                    free,
		folder + "/surplus_hugepages":                                 "0\n",
		hugepagesFolder(2) + "/hugepages-1048576kB/nr_hugepages":      "0\n",
		hugepagesFolder(2) + "/hugepages-1048576kB/free_hugepages":    "0\n",
		hugepagesFolder(2) + "/hugepages-1048576kB/surplus_hugepages": "0\n",
		"sys/devices/system/node/node2/compact":                       "",
	}
}

func TestGrowTo_AsksAgainAfterASignal(t *testing.T) {
	for _, c := range []struct {
		about string
		gives []uint64 // total after each request; the last one stays
		want  uint64
		asked int
	}{
		{"all at once", []uint64{20}, 20, 1},
		{"a signal after the first page", []uint64{11, 20}, 20, 2},
		{"a signal each time", []uint64{11, 15, 19, 20}, 20, 4},
		{"no free memory", []uint64{10}, 10, 1},
		{"memory for a few", []uint64{14, 14}, 14, 2},
		{"another program takes pages out", []uint64{4}, 4, 1},
	} {
		asked := 0
		got, err := growTo(HugePool{Total: 10}, 20, func(total uint64) (HugePool, error) {
			if total != 20 {
				t.Errorf("%s: asked for %d", c.about, total)
			}
			asked++
			return HugePool{Total: c.gives[min(asked, len(c.gives))-1]}, nil
		})
		if err != nil || got.Total != c.want || asked != c.asked {
			t.Errorf("%s: %d pages after %d requests, error %v; want %d after %d", c.about, got.Total, asked, err,
				c.want, c.asked)
		}
	}
}

func TestHugePools(t *testing.T) {
	root := files(t, poolFiles("40\n", "8\n"))
	pools, err := root.HugePools(2)
	if diff := cmp.Diff([]HugePool{{Size: 2 * mib, Total: 40, Free: 8}, {Size: topology.GiB}}, pools); err != nil ||
		diff != "" {
		t.Errorf("error %v\n%s", err, diff)
	}
	if got, err := root.GrowPool(2, 2*mib, 5); err != nil || got != 5 {
		t.Errorf("grew by %d, error %v", got, err)
	}
	if text, _ := root.word("sys/devices/system/node/node2/compact"); text != "1" {
		t.Error("grew without compacting first")
	}
	if gone, err := root.ShrinkPool(2, 2*mib, 20); err != nil || gone != 8 {
		t.Errorf("gave back %d, want only the 8 free ones; error %v", gone, err)
	}
	if _, err := root.GrowPool(2, 16*mib, 1); !errors.Is(err, os.ErrNotExist) ||
		!strings.Contains(err.Error(), "16 MiB") {
		t.Errorf("no such page size: %v", err)
	}
	if _, err := root.HugePools(7); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such node: %v", err)
	}
}
