package e2e_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab/rotate"
)

// A VM fits on no node until another one moves: create refuses and names the move, and
// with --make-room it makes it. The kernel shows the memory of both where they belong.
func TestLabCreateMakesRoom(t *testing.T) {
	rotate.Test(t, 2)
	l := boot(t, "haswell")
	for _, name := range []string{"a", "b"} {
		l.must(t, "create", "--name", name, "--vcpus", "1", "--memory", "160M", "--immediate")
	}
	a, b := l.show(t, "a"), l.show(t, "b")
	if a.Truth.Nodes.Equal(b.Truth.Nodes) {
		t.Fatalf("both are on nodes %s", a.Truth.Nodes)
	}
	var h inventory.Host
	if err := json.Unmarshal([]byte(l.must(t, "capture").stdout), &h); err != nil {
		t.Fatal(err)
	}
	var most topology.Bytes
	for i := range h.Topology.Nodes {
		most = max(most, h.Topology.Nodes[i].Free)
	}
	asked := []string{"create", "--name", "new", "--vcpus", "1", "--max-nodes", "1", "--memory",
		fmt.Sprintf("%dM", (most+64*topology.MiB)/topology.MiB)}
	refused := l.numavisor(t, asked...)
	if refused.status != 1 || !strings.Contains(refused.stderr, "make room: move ") {
		t.Fatalf("status %d: %s", refused.status, refused.stderr)
	}
	dry := l.must(t, append(asked, "--make-room", "--dry-run")...)
	made := l.must(t, append(asked, "--make-room")...)
	t.Logf("%s\n%s", dry.stdout, made.stdout)
	nowA, nowB, v := l.show(t, "a"), l.show(t, "b"), l.show(t, "new")
	for _, each := range []view{nowA, nowB, v} {
		each.vcpusIn(t, 1)
		each.memoryIn(t, 0.98)
	}
	if !nowA.Truth.Nodes.Equal(nowB.Truth.Nodes) || v.Truth.Nodes.Equal(nowA.Truth.Nodes) {
		t.Errorf("a is on nodes %s, b on %s, new on %s; want a and b together and new alone", nowA.Truth.Nodes,
			nowB.Truth.Nodes, v.Truth.Nodes)
	}
	if text := l.must(t, "history").stdout; !strings.Contains(text, "makes room for new") {
		t.Errorf("history:\n%s", text)
	}
}
