package e2e_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab"
)

// ask sends a request to the daemon's socket, and decodes the answer, which must succeed.
func (l *labHost) ask(t *testing.T, method, path, body string, answer any) {
	t.Helper()
	argv := []string{"curl", "-sS", "--fail-with-body", "--max-time", "300", "--unix-socket", "/run/numavisor/daemon.sock",
		"-X", method, "http://daemon" + path}
	if body != "" {
		argv = append(argv, "-H", "Content-Type: application/json", "-d", body)
	}
	r := l.run(t, argv...)
	if r.status != 0 {
		t.Fatalf("%s %s: status %d\n%s%s", method, path, r.status, r.stdout, r.stderr)
	}
	if err := json.Unmarshal([]byte(r.stdout), answer); err != nil {
		t.Fatalf("%s %s: %v\n%s", method, path, err, r.stdout)
	}
}

// awaitVM waits until a VM has a state.
func (l *labHost) awaitVM(t *testing.T, name string, want fleetapi.VMState) (vm fleetapi.VM) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Second) {
		vm = fleetapi.VM{}
		if l.ask(t, "GET", "/v1/vms/"+name, "", &vm); vm.State == want {
			return vm
		}
		if time.Now().After(end) {
			t.Fatalf("%s is %s, not %s: %+v", name, vm.State, want, vm.Status)
		}
	}
}

// One request at the daemon's socket creates a real VM, bound to nodes and verified, and says why it is there.
// Commands and requests see the same VMs, and both delete them.
func TestLabDaemonServesTheFleetsAPI(t *testing.T) {
	l := boot(t, "square4")
	l.sh(t, "rm -rf /run/records; echo 'balance: {mode: advise}' > /run/policy.yaml")
	l.startDaemon(t, "--images", "/lab")
	t.Cleanup(func() { l.stopDaemon(t, "TERM") })

	request := fmt.Sprintf(`{"spec": {"name": "api1", "vcpus": 2, "memory": "128M"},
		"machine": {"kernel": %q, "initrd": %q, "cmdline": %q}}`, lab.GuestKernel, lab.GuestInitrd, lab.GuestCommandLine)
	var would, made fleetapi.VM
	l.ask(t, "POST", "/v1/vms?dry_run=true", request, &would)
	if names := l.sh(t, "virsh -q list --all --name"); strings.Contains(names, "api1") || would.Why == nil {
		t.Errorf("a dry run: VMs %q, %+v", names, would.Why)
	}
	l.ask(t, "POST", "/v1/vms", request, &made)
	made = l.awaitVM(t, "api1", fleetapi.VMRunning)
	var placed fleetapi.Placement
	l.ask(t, "GET", "/v1/vms/api1/placement", "", &placed)
	if placed.Why == nil || placed.Why.Text == "" || !placed.Placement.Nodes.Equal(made.Placement.Nodes) {
		t.Errorf("placement: %+v", placed)
	}
	t.Logf("nodes %s: %s", made.Placement.Nodes, placed.Why.Text)

	seen := l.show(t, "api1")
	seen.vcpusIn(t, 1)
	seen.memoryIn(t, 0.98)
	if !seen.Truth.Nodes.Equal(made.Placement.Nodes) || len(seen.Truth.Differences) > 0 {
		t.Errorf("it is on nodes %s, the answer says %s; drift: %v", seen.Truth.Nodes, made.Placement.Nodes,
			seen.Truth.Differences)
	}
	var nodes fleetapi.Nodes
	l.ask(t, "GET", "/v1/hosts/"+made.Host+"/nodes", "", &nodes)
	var promised topology.Bytes
	for _, n := range nodes.Nodes {
		promised = promised.Plus(n.Promised)
	}
	if len(nodes.Nodes) != 4 || promised < 128*topology.MiB {
		t.Errorf("nodes: %+v", nodes)
	}
	if listed := l.must(t, "list", "--server", "unix:///run/numavisor/daemon.sock").stdout; !strings.Contains(listed, "api1") {
		t.Errorf("list: %s", listed)
	}

	var stopped, resized, started, deleted fleetapi.VM
	l.ask(t, "POST", "/v1/vms/api1/stop", "", &stopped)
	l.awaitVM(t, "api1", fleetapi.VMStopped) // it does not power off by itself
	l.ask(t, "POST", "/v1/vms/api1/resize", `{"vcpus": 3, "memory": "192M"}`, &resized)
	l.ask(t, "POST", "/v1/vms/api1/start", "", &started)
	l.awaitVM(t, "api1", fleetapi.VMRunning)
	seen = l.show(t, "api1")
	seen.vcpusIn(t, 1)
	seen.memoryIn(t, 0.98)
	if len(seen.Truth.Differences) > 0 || resized.Spec.VCPUs != 3 || resized.Spec.Memory != 192*topology.MiB {
		t.Errorf("resized to %+v; drift: %v", resized.Spec, seen.Truth.Differences)
	}
	if size := l.sh(t, "virsh -q dominfo api1"); !strings.Contains(size, "196608 KiB") {
		t.Errorf("libvirt shows another size: %s", size)
	}
	l.ask(t, "DELETE", "/v1/vms/api1", "", &deleted)
	if names := l.sh(t, "virsh -q list --all --name"); strings.Contains(names, "api1") {
		t.Errorf("it is still there: %q", names)
	}
	var history fleetapi.History
	l.ask(t, "GET", "/v1/history?vm=api1", "", &history)
	var did []string
	for _, e := range slices.Backward(history.Entries) {
		did = append(did, e.Operation)
	}
	if want := []string{"create-vm", "stop-vm", "resize-vm", "start-vm", "delete-vm"}; !slices.Equal(did, want) {
		t.Errorf("history %v, not %v: %+v", did, want, history.Entries)
	}
}
