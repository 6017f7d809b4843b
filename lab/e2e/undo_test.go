package e2e_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/lab/rotate"
)

// The undo of a first bind takes the running VM back, and its stored
// configuration too: else the next start would be bound to nodes that
// Numavisor does not reserve any more.
func TestLabUndoesAFirstBind(t *testing.T) {
	rotate.Test(t, 5)
	l := boot(t, "square4")
	l.startAllForeign(t,
		foreign{name: "tuned", memoryMiB: 64, vcpus: 2, persistent: true, backing: "<source type='memfd'/>",
			numatune: "<memory mode='strict' nodeset='0'/>", cputune: "<vcpupin vcpu='0' cpuset='0-1'/>"},
		foreign{name: "plain", memoryMiB: 64, vcpus: 2, persistent: true})
	for _, name := range []string{"tuned", "plain"} {
		before := l.stored(t, name)
		l.must(t, "bind", name, "--nodes", "3")
		if bound := l.stored(t, name); bound == before {
			t.Errorf("%s: bind did not change the stored configuration", name)
		}
		l.must(t, "undo")
		if diff := cmp.Diff(before, l.stored(t, name)); diff != "" {
			t.Errorf("%s: stored configuration (-before the bind +after its undo):\n%s", name, diff)
		}
		if v := l.show(t, name); v.Truth.Managed {
			t.Errorf("%s: still managed after the undo", name)
		}
	}
	if on := l.show(t, "tuned").Truth.MemoryByNode; on[0] < 64<<20 {
		t.Errorf("memory of the running VM by node: %v, want 64 MiB on node 0 again", on)
	}
	if diff := cmp.Diff("0-1", l.sh(t, "virsh -q vcpupin tuned | awk '$1==0{printf $2}'")); diff != "" {
		t.Errorf("pin of vCPU 0 of the running VM (-want +got):\n%s", diff)
	}
}

// stored returns a VM's stored configuration. libvirt leaves an empty element
// where there was metadata once.
func (l *labHost) stored(t *testing.T, name string) string {
	t.Helper()
	return l.sh(t, "virsh -q dumpxml --inactive "+name+" | grep -v '^ *<metadata/>$'")
}
