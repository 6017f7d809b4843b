package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/lab/rotate"
)

// CPU bindings with memory bindings and 1, 2 and 4 cells: the test creates each
// guest, compares it with the kernel's values, and deletes it. create refuses
// what libvirt cannot do. Each third of the 45 combinations has every pair of
// two of the three.
func TestLabCreatesEveryBinding(t *testing.T) {
	l := boot(t, "square4")
	for c, cpu := range []string{"none", "range", "exclusive"} {
		for m, memory := range []string{"none", "preferred", "strict", "interleave", "restrictive"} {
			for k, cells := range []int{1, 2, 4} {
				if !rotate.Turn(m + k + 2*c) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%d cells", cpu, memory, cells),
					func(t *testing.T) { l.checkCreate(t, "m", cpu, memory, cells) })
			}
		}
	}
}

func (l *labHost) checkCreate(t *testing.T, name, cpu, memory string, cells int) {
	t.Helper()
	args := []string{"create", "--name", name, "--memory", "64M", "--cpu-binding", cpu, "--memory-binding", memory}
	switch {
	case cells > 1:
		args = append(args, "--vcpus", "4", "--topology", fmt.Sprint(cells))
	case memory == "interleave": // over the two nodes that four vCPUs need
		args = append(args, "--vcpus", "4", "--topology", "off")
	default:
		args = append(args, "--vcpus", "2", "--topology", "off")
	}
	if memory != "none" { // allocating at start without a policy is refused
		args = append(args, "--immediate")
	}
	if memory == "restrictive" && cells > 1 {
		r := l.numavisor(t, args...)
		if r.status != 2 || !strings.Contains(r.stderr, "restrictive") {
			t.Errorf("restrictive does not place cells, so it must be refused; got status %d, %s", r.status, r.stderr)
		}
		return
	}
	defer l.numavisor(t, "delete", name)
	l.must(t, args...)
	v := l.show(t, name)
	v.vcpusIn(t, 1)
	if memory != "none" {
		v.memoryIn(t, 0.98)
	}
	if len(v.Truth.Differences) > 0 {
		t.Errorf("drift right after create: %v", v.Truth.Differences)
	}
	wantPolicy := map[string]string{"none": "default", "restrictive": "default", "preferred": "prefer",
		"strict": "bind", "interleave": "interleave"}[memory]
	if memory != "none" && len(v.Cells) != cells {
		t.Errorf("%d mappings of guest RAM for %d cells: %+v", len(v.Cells), cells, v.Cells)
	}
	for _, c := range v.Cells {
		if cells == 1 && memory == "preferred" {
			// libvirt binds a guest without cells to its limit: the limit leaves no
			// other node to prefer
			wantPolicy = "bind"
		}
		if !strings.HasPrefix(c.Policy, wantPolicy) {
			t.Errorf("cell %s: policy %q, want %s", c.Name, c.Policy, wantPolicy)
		}
	}
	if cells > 1 && memory != "interleave" && memory != "none" {
		nodes := map[string]bool{}
		for _, c := range v.Cells {
			nodes[c.Intended.String()] = true
		}
		if len(nodes) != cells {
			t.Errorf("%d cells share %d nodes", cells, len(nodes))
		}
	}
}

func TestLabCreatesOnHugePagesAndGivesThemBack(t *testing.T) {
	l := boot(t, "square4")
	before := l.pools(t)
	l.must(t, "create", "--name", "huge", "--vcpus", "2", "--memory", "64M", "--page-size", "2M", "--memory-binding",
		"strict")
	v := l.show(t, "huge")
	v.memoryIn(t, 0.98)
	if len(v.Cells) != 1 || v.Cells[0].PageSize != 2<<20 {
		t.Errorf("not on huge pages: %+v", v.Cells)
	}
	l.must(t, "delete", "huge")
	if after := l.pools(t); after != before {
		t.Errorf("pools before %q, after deleting %q", before, after)
	}
}
