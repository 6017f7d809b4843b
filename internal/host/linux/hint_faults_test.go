package linux

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/topology"
)

// hintFaults is a part of /proc/PID/task/TID/sched of a vCPU thread, from Linux 6.1 on a host with four nodes while the
// kernel brought the VM's memory to node 1.
const hintFaults = `CPU 0/KVM (260, #threads: 4)
-------------------------------------------------------------------
se.exec_start                                :        158941.052716
mm->numa_scan_seq                            :                    2
numa_pages_migrated                          :                34327
numa_preferred_nid                           :                    1
total_numa_faults                            :                34072
current_node=1, numa_group_id=0
numa_faults node=0 task_private=0 task_shared=0 group_private=0 group_shared=0
numa_faults node=1 task_private=34072 task_shared=0 group_private=0 group_shared=0
numa_faults node=2 task_private=0 task_shared=0 group_private=0 group_shared=0
numa_faults node=3 task_private=3 task_shared=4 group_private=9 group_shared=9
`

func TestRoot_HintFaults(t *testing.T) {
	root := t.TempDir()
	write := func(tid, text string) {
		t.Helper()
		file := filepath.Join(root, "proc/7/task", tid, "sched")
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("7", strings.NewReplacer("34072", "1", "seq                            :                    2",
		"seq : 3").Replace(hintFaults))
	write("8", hintFaults)
	if err := os.MkdirAll(filepath.Join(root, "proc/7/task/9"), 0o755); err != nil { // a thread that has ended
		t.Fatal(err)
	}
	got, err := Root(root).HintFaults(7)
	want := topology.MemoryByNode{1: 34073 * smallPage, 3: 14 * smallPage}
	if err != nil || got.Passes != 3 || !maps.Equal(got.Memory, want) {
		t.Errorf("%+v, %v; want 3 passes and %v", got, err, want)
	}
}

func TestRoot_HintFaults_NotRecorded(t *testing.T) {
	root := t.TempDir()
	if _, err := Root(root).HintFaults(7); !Gone(err) {
		t.Errorf("no process: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(root, "proc/7/task/7"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Root(root).HintFaults(7); !Gone(err) {
		t.Errorf("a kernel without the file: %v", err)
	}
}

func TestParseHintFaults_Malformed(t *testing.T) {
	for name, text := range map[string]string{
		"a kernel without NUMA balancing": "CPU 0/KVM (260, #threads: 4)\nse.exec_start : 1\n",
		"no number":                       strings.Replace(hintFaults, "                    2\n", " two\n", 1),
		"no node":                         strings.Replace(hintFaults, "faults node=1", "faults", 1),
		"a node that is too large":        strings.Replace(hintFaults, "faults node=1", "faults node=65536", 1),
		"pages that are no number":        strings.Replace(hintFaults, "34072 ", "-1 ", 1),
	} {
		if got, err := ParseHintFaults([]byte(text)); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
