package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/host/hosttest"
	"github.com/numavisor/numavisor/internal/host/xen"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/labtest"
	"github.com/numavisor/numavisor/lab/rotate"
)

// xenDriver is the package whose tests run in dom0 of the lab.
const xenDriver = "../../internal/host/xen"

// xlGuest is a guest of the lab as an xl configuration.
const xlGuest = `# how the lab's guest boots
name = "NAME"
type = "pvh"
kernel = "/lab/vmlinuz"
ramdisk = "/lab/files/guest.initrd"
extra = "console=hvc0 quiet panic=-1"
memory = 192
vcpus = 2 # as many as a node has CPUs
`

// bootXen boots a Xen lab; its commands run in dom0.
func bootXen(t *testing.T) *labHost {
	t.Helper()
	return bootXenWith(t, map[string]string{})
}

// bootXenWith is bootXen with more programs.
func bootXenWith(t *testing.T, files map[string]string) *labHost {
	t.Helper()
	labtest.NeedsLab(t)
	binary, err := filepath.Abs("../../bin/numavisor")
	if err != nil {
		t.Fatal(err)
	}
	files["numavisor"] = binary
	h := labtest.Boot(t, "square4", lab.Options{Hypervisor: lab.Xen, Files: files})
	if err := h.AddGuest(t.Context()); err != nil {
		t.Fatal(err)
	}
	l := &labHost{Host: h, ctx: context.Background()}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(l.run(t, "sh", "-c",
				"xl list -v; tail -n 30 /var/log/xen/xl-*.log /var/log/xen/console/*; xl dmesg | tail -n 30").stdout)
		}
	})
	return l
}

// writeXL writes the configuration of a guest, with more lines, to /run/NAME.cfg and returns the path.
func (l *labHost) writeXL(t *testing.T, name, more string) string {
	t.Helper()
	path := "/run/" + name + ".cfg"
	text := strings.Replace(xlGuest, "NAME", name, 1) + more
	if r := l.run(t, "sh", "-c", `printf %s "$1" > "$0"`, path, text); r.status != 0 {
		t.Fatal(r.stderr)
	}
	return path
}

// expect runs a command and requires its exit status.
func (l *labHost) expect(t *testing.T, status int, argv ...string) result {
	t.Helper()
	r := l.run(t, argv...)
	if r.status != status {
		t.Fatalf("%v: status %d, want %d\n%s%s", argv, r.status, status, r.stdout, r.stderr)
	}
	return r
}

// xl and real guests pass the suite that the simulated Xen passes.
func TestLabXenDriver(t *testing.T) {
	rotate.Test(t, 2)
	h := labtest.Boot(t, "square4", lab.Options{Hypervisor: lab.Xen,
		Files: map[string]string{"xen-tests": labtest.Build(t, xenDriver)}})
	labtest.Inside(t, h, "xen-tests", xenDriver)
}

// On a Xen host a VM is created on one node, its memory is where its vCPUs are, and what bind does is undone.
// What cannot be done is refused and changes nothing.
func TestLabXen(t *testing.T) {
	rotate.Test(t, 3)
	l := bootXen(t)
	if out := l.must(t, "topology").stdout; strings.Count(out, "1 GiB") != 4 {
		t.Errorf("topology does not show four nodes of 1 GiB:\n%s", out)
	}
	given := l.writeXL(t, "web", "")
	before := l.sh(t, "cat "+given)
	l.must(t, "create", "--xl", given)
	if after := l.sh(t, "cat "+given); after != before {
		t.Errorf("create changed the operator's file:\n%s", after)
	}
	v := l.show(t, "web")
	v.memoryIn(t, 1)
	v.vcpusIn(t, 1)
	home, ok := v.onlyNode()
	if !ok || v.total() < 190*topology.MiB {
		t.Fatalf("memory by node is %v, want 192 MiB on one node", v.Truth.MemoryByNode)
	}
	if out := l.must(t, "list").stdout; !strings.Contains(out, fmt.Sprint("node ", home)) ||
		!strings.Contains(out, "100.0 %") {
		t.Errorf("list does not show the VM on node %d with local memory:\n%s", home, out)
	}
	other := (home + 1) % 4
	l.expect(t, 3, "numavisor", "bind", "web", "--nodes", fmt.Sprint(other)) // its memory stays
	l.affinityIs(t, "web", other)
	if node, ok := l.show(t, "web").onlyNode(); !ok || node != home {
		t.Errorf("after the bind to node %d the memory is no longer on node %d", other, home)
	}
	l.must(t, "bind", "web", "--nodes", fmt.Sprint(home))
	l.affinityIs(t, "web", home)
	l.recreatesOnXen(t, "web", home)
	l.migratesOnXen(t, "web")
	l.createsHVM(t)
	l.refusesOnXen(t)
	l.withoutXL(t)
	l.must(t, "delete", "web")
	if out := l.sh(t, "xl list"); strings.Contains(out, "web") {
		t.Errorf("the deleted VM is there:\n%s", out)
	}
	if left := l.sh(t, "xenstore-ls /tool/numavisor/guest 2>/dev/null || true"); left != "" {
		t.Errorf("the deleted VM's intent is there:\n%s", left)
	}
	l.usesPools(t)
}

// The daemon on a Xen host relieves an overloaded node, also if it is killed meanwhile, and sees VMs vanish. Requests
// at its socket create VMs and delete them.
func TestLabXenDaemon(t *testing.T) {
	rotate.Test(t, 4)
	bootXen(t).relievesOnXen(t)
}

// An HVM VM too large for one node sees two: its kernel has both, and the memory of each is on a node of the host for
// itself, with its vCPUs. Of a configuration that has vnuma, only the nodes and distances change.
func TestLabXenCells(t *testing.T) {
	rotate.Test(t, 1)
	l := bootXen(t)
	if err := l.AddDeviceModel(l.ctx); err != nil {
		t.Fatal(err)
	}
	l.createsCells(t)
}

// FIELD row P4: the same twenty commands give answers of the same shape on a host with KVM and on one with Xen.
func TestLabXenP4(t *testing.T) {
	rotate.Test(t, 3)
	host := bootXen(t)
	definition := host.writeXL(t, "web", "")
	onXen := host.answers(t, "create", "--xl", definition)
	if err := host.Kill(); err != nil { // two labs at once would take more than twice as long
		t.Fatal(err)
	}
	kvm := bootWith(t, "square4", lab.Options{Saved: true})
	onKVM := kvm.answers(t, "create", "--name", "web", "--vcpus", "2", "--memory", "192M", "--kernel", lab.GuestKernel,
		"--initrd", lab.GuestInitrd, "--append", lab.GuestCommandLine)
	for i := range onKVM {
		a, b := onKVM[i], onXen[i]
		if a.status != b.status {
			t.Errorf("%s: status %d with KVM, %d with Xen\nKVM: %s\nXen: %s", a.command, a.status, b.status, a.said, b.said)
		}
		for _, d := range hosttest.PlaneDifferences(a.shape, b.shape) {
			t.Errorf("%s: %s", a.command, d)
		}
	}
}

// xenFleet is a fleet of Xen hosts: server and daemon run in dom0 of one of them.
type xenFleet struct {
	*labHost

	url, token string
}

// upXen starts 'numavisor up' in dom0, and returns when the server answers at the address.
func upXen(t *testing.T, l *labHost, address string) *xenFleet {
	t.Helper()
	f := &xenFleet{labHost: l, url: "https://" + address}
	f.sh(t, "ip link set lo up; setsid numavisor up --address "+address+" --images /lab >/run/up.log 2>&1 </dev/null &")
	f.token = strings.TrimSpace(f.sh(t, `until grep -A1 '^Token of user admin' /run/up.log | grep -o 'nv._[^ ]*'; do
  sleep 0.5; pgrep -f 'numavisor up' >/dev/null || { cat /run/up.log; exit 1; }; done
until curl -s --cacert `+fleetCA+` `+f.url+`/openapi.json >/dev/null; do sleep 0.5; done`))
	return f
}

// ready waits until the server knows the nodes of a number of hosts.
func (f *xenFleet) ready(t *testing.T, hosts int) {
	t.Helper()
	f.await(t, "all hosts are reachable", func() bool {
		var all fleetapi.Hosts
		f.request(t, "GET", "/v1/hosts", "", &all)
		ready := func(h fleetapi.Host) bool { return h.State == fleetapi.HostReachable && h.Nodes == 4 }
		return len(all.Hosts) == hosts && !slices.ContainsFunc(all.Hosts, func(h fleetapi.Host) bool { return !ready(h) })
	})
}

// request sends a request as a user does, requires that it succeeds, and decodes the answer.
func (f *xenFleet) request(t *testing.T, method, path, body string, answer any) {
	t.Helper()
	argv := []string{"curl", "-sS", "--fail-with-body", "--max-time", "120", "--cacert", fleetCA,
		"-H", "Authorization: Bearer " + f.token, "-X", method, f.url + path}
	if body != "" {
		argv = append(argv, "-H", "Content-Type: application/json", "-d", body)
	}
	r := f.expect(t, 0, argv...)
	if answer == nil {
		return
	}
	if err := json.Unmarshal([]byte(r.stdout), answer); err != nil {
		t.Fatalf("%s %s: %v\n%s", method, path, err, r.stdout)
	}
}

// patience bounds how long a test waits for one thing, so that it ends only tests that hang. On two emulated Xen hosts
// a fleet took 8 minutes to migrate a VM while another program used half of the machine.
const patience = 15 * time.Minute

// await waits until something holds. It pauses between two questions: each one starts a program on the emulated host.
func (l *labHost) await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(2 * time.Second) {
		if time.Now().After(end) {
			t.Fatal("not yet: " + what)
		}
	}
}

// until waits until a VM is in a state.
func (f *xenFleet) until(t *testing.T, name string, want fleetapi.VMState) (vm fleetapi.VM) {
	t.Helper()
	f.await(t, fmt.Sprintf("%s is %s", name, want), func() bool {
		f.request(t, "GET", "/v1/vms/"+name, "", &vm)
		return vm.State == want
	})
	return vm
}

// isBound requires that the VM has its memory and affinities on one of the nodes, also if its kernel crashes while it
// boots, which reboots it.
func (l *labHost) isBound(t *testing.T, name string, nodes topology.NodeSet) {
	t.Helper()
	var v view
	l.await(t, name+" has its memory", func() bool {
		r := l.run(t, "numavisor", "show", name, "-o", "json")
		v = view{}
		return r.status == 0 && json.Unmarshal([]byte(r.stdout), &v.View) == nil && v.total() > 190*topology.MiB
	})
	home, ok := v.onlyNode()
	if !ok || !nodes.Contains(home) {
		t.Errorf("its memory is on %v, the chosen nodes are %s", v.Truth.MemoryByNode, nodes)
	}
	l.affinityIs(t, name, home)
}

// xenRequest is a request for a VM of type xen.
func xenRequest(name string) string {
	return `{"spec": {"name": "` + name + `", "vcpus": 2, "memory": "192M"}, "machine": {"type": "xen",
"kernel": "/lab/vmlinuz", "initrd": "/lab/files/guest.initrd", "cmdline": "console=hvc0 quiet panic=-1"}}`
}

// createsThroughSocket creates and deletes a VM by requests at the daemon's socket. A stop is refused: xl stores no
// configuration.
func (l *labHost) createsThroughSocket(t *testing.T) {
	t.Helper()
	var vm fleetapi.VM
	l.ask(t, "POST", "/v1/vms", xenRequest("api1"), &vm)
	vm = l.awaitVM(t, "api1", fleetapi.VMRunning)
	l.isBound(t, "api1", vm.Placement.Nodes)
	refused := l.run(t, "curl", "-sS", "--unix-socket", "/run/numavisor/daemon.sock", "-X", "POST",
		"http://daemon/v1/vms/api1/stop")
	said := refused.stdout
	l.await(t, "it is refused, perhaps after the answer: "+said+refused.stderr, func() bool {
		if strings.Contains(said, "delete it instead") {
			return true
		}
		l.ask(t, "GET", "/v1/vms/api1", "", &vm)
		said = vm.Status.Message
		return false
	})
	l.ask(t, "DELETE", "/v1/vms/api1", "", &vm)
	l.until(t, "! xl list | grep -q api1")
}

// uuidOf returns the UUID of a VM that runs or reboots.
func (l *labHost) uuidOf(t *testing.T, name string) (uuid string) {
	t.Helper()
	l.await(t, name+" has a UUID", func() bool {
		uuid = l.run(t, "sh", "-c", "xl vm-list | grep ' "+name+" *$' | cut -d' ' -f1").stdout
		return uuid != ""
	})
	return uuid
}

// staysAway requires that xl does not make a VM again: it waits for two seconds before it does.
func (f *xenFleet) staysAway(t *testing.T, name string) {
	t.Helper()
	if out := f.sh(t, "for i in 1 2 3 4 5 6 7 8; do xl list; sleep 1; done"); strings.Contains(out, name) {
		t.Errorf("VM %s, which has ended, is there:\n%s", name, out)
	}
}

// A fleet of one Xen host creates a VM of type xen from its record: the VM has its memory on the nodes that the server
// chose, is gone once it is stopped, comes back with its UUID, and is deleted, also while it reboots.
func TestLabXenFleet(t *testing.T) {
	rotate.Test(t, 5)
	f := upXen(t, bootXenWith(t, serverProgram(t)), "localhost:8443")
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(f.run(t, "sh", "-c", "xl list; for f in /var/log/xen/xl-*.log* /var/log/xen/console/*.log /run/up.log; do "+
				`echo "$f:"; tail -n 40 "$f"; done`).stdout)
		}
	})
	f.ready(t, 1)
	f.request(t, "POST", "/v1/vms", xenRequest("web"), nil)
	vm := f.until(t, "web", fleetapi.VMRunning)
	f.isBound(t, "web", vm.Placement.Nodes)
	uuid := f.uuidOf(t, "web")
	f.request(t, "POST", "/v1/vms/web/stop", "", nil)
	f.until(t, "web", fleetapi.VMStopped)
	f.staysAway(t, "web")
	f.request(t, "POST", "/v1/vms/web/start", "", nil)
	f.until(t, "web", fleetapi.VMRunning)
	if again := f.uuidOf(t, "web"); again != uuid {
		t.Errorf("its UUID was %s and is %s", uuid, again)
	}
	f.sh(t, `until id=$(xl domid web) && xl reboot web; do sleep 1; done 2>/dev/null
while [ "$(xl domid web 2>/dev/null)" = "$id" ]; do sleep 0.2; done`)
	f.request(t, "DELETE", "/v1/vms/web", "", nil)
	f.await(t, "it is deleted", func() bool {
		var all fleetapi.VMs
		f.request(t, "GET", "/v1/vms", "", &all)
		return len(all.VMs) == 0
	})
	f.staysAway(t, "web")
}

// scripted is what one command of a script printed.
type scripted struct {
	command string
	status  int
	said    string
	shape   hosttest.Shape
}

// answers runs twenty commands with -o json; create is the one that creates the VM web from a definition in the form of
// the hypervisor.
func (l *labHost) answers(t *testing.T, create ...string) (all []scripted) {
	t.Helper()
	dry := append(slices.Clone(create), "--dry-run")
	for _, argv := range [][]string{
		{"version"}, {"topology"}, {"capture"}, {"list"}, {"place", "--vcpus", "2", "--memory", "128M"},
		{"place", "--vcpus", "2", "--memory", "1T"}, dry, create, {"list"}, {"show", "web"}, {"show", "nothing"},
		{"bind", "web", "--dry-run"}, {"bind", "web", "--recompute"}, {"balance"}, {"doctor"}, {"capture"},
		{"history"}, {"pool", "list"}, {"delete", "web", "--dry-run"}, {"delete", "web"},
	} {
		began := time.Now()
		r := l.run(t, append(append([]string{"numavisor"}, argv...), "-o", "json")...)
		t.Logf("%.1f s: %v", time.Since(began).Seconds(), argv)
		text := r.stdout
		if text == "" {
			text = r.stderr // {"error": ...}
		}
		s, err := hosttest.ShapeOf([]byte(text))
		if err != nil {
			t.Errorf("%v: status %d: %v\n%s%s", argv, r.status, err, r.stdout, r.stderr)
		}
		all = append(all, scripted{command: strings.Join(argv, " "), status: r.status,
			said: r.stdout + r.stderr, shape: s})
	}
	return all
}

// createsHVM creates a VM with firmware, whose devices QEMU emulates in dom0, and binds it to another node than that of
// its memory and back.
func (l *labHost) createsHVM(t *testing.T) {
	t.Helper()
	if err := l.AddDeviceModel(l.ctx); err != nil {
		t.Fatal(err)
	}
	l.must(t, "create", "--xl", l.writeHVM(t, "firm", ""))
	if err := l.AwaitGuest(l.ctx, "firm"); err != nil {
		t.Fatal(err)
	}
	v := l.show(t, "firm")
	home, ok := v.onlyNode()
	if !ok || v.total() < 190*topology.MiB || len(v.Truth.Differences) > 0 {
		t.Errorf("the HVM guest's memory is %v, differences %v", v.Truth.MemoryByNode, v.Truth.Differences)
	}
	l.affinityIs(t, "firm", home)
	l.expect(t, 3, "numavisor", "bind", "firm", "--nodes", fmt.Sprint((home+1)%4))
	l.affinityIs(t, "firm", (home+1)%4)
	l.must(t, "undo")
	l.affinityIs(t, "firm", home)
	if r := l.run(t, "numavisor", "bind", "firm", "--nodes", fmt.Sprint((home+1)%4), "--recreate", "--policy",
		"/run/recreate.yaml"); r.status == 0 || !strings.Contains(r.stderr, "--xl") {
		t.Errorf("of an HVM guest no configuration is computed, and --xl is not named: status %d\n%s", r.status, r.stderr)
	}
	l.must(t, "delete", "firm")
}

// writeHVM writes the configuration of a guest with firmware, which needs the lab's device model.
func (l *labHost) writeHVM(t *testing.T, name, more string) string {
	t.Helper()
	path := l.writeXL(t, name, "serial = \"pty\"\nvga = \"none\"\nvnc = 0\n"+more)
	l.sh(t, "sed -i 's/pvh/hvm/; s/hvc0/ttyS0/' "+path)
	return path
}

// changedCells are the lines of vnuma that createsCells gives, with other nodes and distances.
var changedCells = regexp.MustCompile(`(?m)^\+vnuma = \[ \[ "pnode=[0-3]","size=128","vcpus=1","vdistances=10,[12][068]" \], # large
\+  \[ "pnode=[0-3]","size=64","vcpus=0","vdistances=[12][068],10" \] \]$`)

// createsCells creates a VM of two cells, and compares with Xen and with what the VM says.
func (l *labHost) createsCells(t *testing.T) {
	t.Helper()
	given := l.writeHVM(t, "given", `vnuma = [ [ "pnode=3","size=128","vcpus=1","vdistances=10,99" ], # large
  [ "pnode=3","size=64","vcpus=0","vdistances=99,10" ] ]
`)
	out := l.must(t, "create", "--xl", given, "--dry-run").stdout
	if !changedCells.MatchString(out) {
		t.Errorf("of the vnuma of a configuration not nodes and distances alone change:\n%s", out)
	}
	path := l.writeHVM(t, "cells", "")
	l.sh(t, "sed -i 's/vcpus = 2/vcpus = 4/' "+path) // too many for one node
	l.must(t, "create", "--xl", path, "--topology", "auto")
	if err := l.AwaitGuest(l.ctx, "cells"); err != nil {
		t.Fatal(err)
	}
	said := l.sh(t, `grep -aho 'NUMAVISOR-GUEST READY [0-9]* [0-9]*' /lab/files/console-cells-*`)
	if !strings.HasSuffix(strings.TrimSpace(said), " 2") {
		t.Errorf("the VM says %q; want one that sees 2 nodes", said)
	}
	v := l.show(t, "cells")
	if len(v.Config.Cells) != 2 || len(v.Placement.Cells) != 2 || len(v.Truth.Differences) > 0 {
		t.Fatalf("cells %+v, placed as %+v, differences %v", v.Config.Cells, v.Placement.Cells, v.Truth.Differences)
	}
	l.must(t, "bind", "cells", "--recompute")
	vcpus := l.expect(t, 0, "xl", "vcpu-list", "cells").stdout
	for i, cell := range v.Placement.Cells {
		node, _ := cell.Nodes.First()
		if has := v.Truth.MemoryByNode[node]; has < 86*topology.MiB || has > 106*topology.MiB {
			t.Errorf("cell %d has 96 MiB and is on node %d, which has %v; memory by node %v", i, node, has, v.Truth.MemoryByNode)
		}
		if cpus := fmt.Sprintf("%d-%d / %[1]d-%[2]d", 2*node, 2*node+1); strings.Count(vcpus, cpus) != 2 {
			t.Errorf("not two vCPUs have the affinities %s of the cell on node %d:\n%s", cpus, node, vcpus)
		}
	}
	l.must(t, "delete", "cells")
}

// migratesOnXen lets a VM migrate to this host itself, by a transport that runs commands here: one that works, and one
// that breaks off in the midst, which leaves one VM. TestLabXenMigratesBetweenHosts has two hosts and a network.
func (l *labHost) migratesOnXen(t *testing.T, name string) {
	t.Helper()
	l.sh(t, `printf '#!/bin/sh\nshift\nexec sh -c "$*"\n' > /run/here
printf '#!/bin/sh\nshift\ncase "$*" in *migrate-receive*) head -c 30000000 | sh -c "$*";; *) exec sh -c "$*";; esac\n' > /run/breaks
chmod +x /run/here /run/breaks`)
	to := func(status int, transport string, more ...string) result {
		t.Helper()
		return l.expect(t, status, append([]string{"numavisor", "migrate", name, "--to", "localhost", "--transport",
			transport}, more...)...)
	}
	allowed := []string{"--policy", "/run/recreate.yaml"}
	if r := to(1, "/run/here"); !strings.Contains(r.stderr, "movers.recreate") {
		t.Errorf("a migration to the host itself does not name the policy:\n%s", r.stderr)
	}
	before := l.sh(t, "xl domid "+name)
	if r := to(1, "/run/breaks", allowed...); !strings.Contains(r.stderr, "migrat") {
		t.Errorf("a migration that breaks off says\n%s", r.stderr)
	}
	if after := l.sh(t, "xl domid "+name); after != before || strings.Contains(l.sh(t, "xl list"), "--incoming") {
		t.Errorf("after a migration that broke off there are\n%s", l.sh(t, "xl list"))
	}
	if err := l.AwaitGuest(l.ctx, name); err != nil {
		t.Errorf("after a migration that broke off the VM does not answer: %v", err)
	}
	if r := to(0, "/run/here", append(allowed, "--dry-run")...); !strings.Contains(r.stdout, "xl migrate") {
		t.Errorf("the dry run says\n%s", r.stdout)
	}
	r := to(0, "/run/here", allowed...)
	t.Log(r.stdout)
	if after := l.sh(t, "xl domid "+name); after == before || strings.Contains(l.sh(t, "xl list"), "--incoming") {
		t.Errorf("after the migration there are\n%s", l.sh(t, "xl list"))
	}
	v := l.show(t, name)
	if _, ok := v.onlyNode(); !ok || len(v.Truth.Differences) > 0 {
		t.Errorf("after the migration the memory is on %v, differences %v", v.Truth.MemoryByNode, v.Truth.Differences)
	}
}

// recreatesOnXen moves a VM with its memory to another node, by a live migration to the host itself with a computed
// configuration. The policy must allow it.
func (l *labHost) recreatesOnXen(t *testing.T, name string, home topology.NodeID) {
	t.Helper()
	to := (home + 2) % 4
	args := []string{"numavisor", "bind", name, "--nodes", fmt.Sprint(to), "--recreate"}
	if r := l.expect(t, 1, args...); !strings.Contains(r.stderr, "movers.recreate") {
		t.Errorf("without the policy the error does not name it:\n%s", r.stderr)
	}
	before := l.sh(t, "xl list -l "+name+" | grep uuid")
	l.sh(t, "printf 'movers: {recreate: operator}\n' > /run/recreate.yaml")
	r := l.expect(t, 0, append(args, "--policy", "/run/recreate.yaml")...)
	t.Log(r.stdout)
	if node, ok := l.show(t, name).onlyNode(); !ok || node != to {
		t.Errorf("made again, the memory of %s is not on node %d:\n%s", name, to, r.stdout)
	}
	l.affinityIs(t, name, to)
	if after := l.sh(t, "xl list -l "+name+" | grep uuid"); after != before {
		t.Errorf("the UUID was%sand is%s", before, after)
	}
	if out := l.sh(t, "xl list"); strings.Contains(out, "incoming") {
		t.Errorf("a copy is left:\n%s", out)
	}
}

// until waits until a command of the shell succeeds in the lab. It asks again and again from outside: busy VMs slow the
// lab down so much that no bound for a single command holds.
func (l *labHost) until(t *testing.T, condition string) {
	t.Helper()
	for end := time.Now().Add(patience); l.run(t, "sh", "-c", condition).status != 0; time.Sleep(2 * time.Second) {
		if time.Now().After(end) {
			t.Fatalf("never: %s\n%s", condition, l.sh(t, "tail -20 /run/daemon.log; numavisor top --once; xl vcpu-list"))
		}
	}
}

// relievesOnXen lets two guests overload one CPU of node 2, where their memory is: on two CPUs they would leave a small
// machine no time for dom0, and xl would not answer. The daemon moves the vCPUs of one of them or of both, is killed
// meanwhile, and its next start finishes the move. A guest that vanishes is no longer shown.
func (l *labHost) relievesOnXen(t *testing.T) {
	t.Helper()
	names := []string{"busy1", "busy2"}
	for _, name := range names {
		// The emulation of nested virtualisation crashes a working VM now and then.
		l.expect(t, 0, "xl", "create", l.writeXL(t, name, `cpus = "4"
cpus_soft = "4"
on_crash = "restart"
`))
		if err := l.AwaitGuest(l.ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	l.work(t, 3600, names...)
	// Between the first and the second pin of a move there is time for a kill.
	l.sh(t, `mkdir -p /run/first; printf '#!/bin/sh\n[ "$1" = vcpu-pin ] && [ "$3" != 0 ] && touch /run/pinning && sleep 600\nexec %s "$@"\n' "$(command -v xl)" > /run/first/xl
chmod +x /run/first/xl`)
	// Each sample runs xl, which takes longer than a second in the lab.
	seldom := []string{"--every", "5s"}
	l.setPolicy(t, "", names...)
	l.startDaemon(t, seldom...)
	t.Cleanup(func() { l.stopDaemon(t, "TERM") })
	l.until(t, "test -e /run/pinning")
	l.stopDaemon(t, "KILL")
	l.sh(t, "rm -r /run/first")
	before := len(l.journal(t, ends...)) // moves that could not begin, as xl did not answer in a slow lab
	l.startDaemon(t, append(seldom, "--images", "/lab")...)
	l.until(t, fmt.Sprintf(`test $(grep -cE '%s' /run/records/history.jsonl) -gt %d`, entriesOf(ends...), before))
	end := l.journal(t, ends...)[before]
	if end.Kind != journal.MoveDone {
		t.Fatalf("the move ended as %+v, want move-done\n%s", end, l.sh(t, "cat /run/daemon.log"))
	}
	moved := end.Guests[0]
	if out := l.expect(t, 0, "xl", "vcpu-list", moved).stdout; regexp.MustCompile(` 4(-5)? /`).MatchString(out) {
		t.Errorf("after the move %s is on node 2:\n%s", moved, out)
	}
	s := l.status(t)
	t.Logf("the daemon used %v of CPU time in %v; the last sample %v", s.Self.CPU, s.Sample.Taken.Sub(s.Started),
		s.Sample.Cost)
	for _, g := range s.Sample.Guests {
		t.Logf("%s: %+v", g.Name, g.Load)
	}
	l.sh(t, "xl destroy "+moved)
	l.until(t, `! numavisor top -o json | grep -q '"name": *"`+moved+`"'`)
	l.await(t, "the daemon shows and measures the other VM alone", func() bool {
		left := l.status(t)
		return len(left.Guests) == 1 && left.Guests[0].Name != moved && len(left.Sample.Guests) == 1
	})
	for _, name := range names {
		if name != moved {
			l.must(t, "delete", "--force", name) // Numavisor did not create it
		}
	}
	l.createsThroughSocket(t)
	l.stopDaemon(t, "TERM")
}

// affinityIs requires that the hard and soft affinity of both vCPUs of a guest are the CPUs of a node.
func (l *labHost) affinityIs(t *testing.T, name string, node topology.NodeID) {
	t.Helper()
	want := fmt.Sprintf("%d-%d / %d-%d", 2*node, 2*node+1, 2*node, 2*node+1) // square4 has two CPUs for each node
	var r result
	l.await(t, name+" has vCPUs, also if it reboots just now", func() bool {
		r = l.run(t, "xl", "vcpu-list", name)
		return r.status == 0
	})
	if strings.Count(r.stdout, want) != 2 {
		t.Errorf("the affinities of %s are not %s:\n%s", name, want, r.stdout)
	}
}

// onlyNode returns the node that has all memory of the VM.
func (v view) onlyNode() (topology.NodeID, bool) {
	for node, amount := range v.Truth.MemoryByNode {
		if amount == v.total() && amount > 0 {
			return node, true
		}
	}
	return 0, false
}

// stateOfXen is what a refused command must not change: guests, affinities and intents.
func (l *labHost) stateOfXen(t *testing.T) string {
	t.Helper()
	return l.sh(t, `xl list | awk '{print $1, $2, $3, $4}'; xl vcpu-list | grep -o '[^ ]* / .*'; xenstore-ls /tool/numavisor`)
}

// refusesOnXen gives configurations that cannot be created.
func (l *labHost) refusesOnXen(t *testing.T) {
	t.Helper()
	before := l.stateOfXen(t)
	for _, c := range []struct {
		name, more string
		status     int
		says       string
	}{
		{"large", "maxmem = 64000\n", 1, "large"},
		{"broken", "cpus = [[\n", 2, "line"},
		{"nowhere", `cpus = "nodes:9"` + "\n", 2, "cpus"},
		{"virtual", `vnuma = [ [ "pnode=0","size=192","vcpus=0-1","vdistances=10" ] ]` + "\n", 2, "vnuma"},
		{"poolless", `pool = "nope"` + "\n", 1, "nope"},
		{"kernelless", `kernel = "/nowhere"` + "\n", 1, "nowhere"}, // only xl finds it
		{"web", "", 1, "web"},
	} {
		path := "/run/refused-" + c.name + ".cfg"
		text := strings.Replace(xlGuest, "NAME", c.name, 1) + c.more
		l.expect(t, 0, "sh", "-c", `printf %s "$1" > "$0"`, path, text)
		if r := l.expect(t, c.status, "numavisor", "create", "--xl", path); !strings.Contains(r.stderr, c.says) {
			t.Errorf("configuration %s: the error does not name %q:\n%s", c.name, c.says, r.stderr)
		}
	}
	if after := l.stateOfXen(t); after != before {
		t.Errorf("refused configurations changed the host from\n%s\nto\n%s", before, after)
	}
}

// withoutXL runs numavisor with an xl that hangs, and with none.
func (l *labHost) withoutXL(t *testing.T) {
	t.Helper()
	before := l.stateOfXen(t)
	l.sh(t, `mkdir -p /run/hanging /run/none && printf '#!/bin/sh\nexec sleep 600\n' > /run/hanging/xl && chmod +x /run/hanging/xl
cp -P "$(command -v numavisor)" /run/none/numavisor 2>/dev/null || ln -s "$(command -v numavisor)" /run/none/numavisor`)
	begin := time.Now()
	r := l.expect(t, 1, "sh", "-c", `PATH=/run/hanging:$PATH numavisor list`)
	took := time.Since(begin)
	if !strings.Contains(r.stderr, "xl") || !strings.Contains(r.stderr, xen.CallTime.String()) {
		t.Errorf("the error does not name xl and its deadline:\n%s", r.stderr)
	}
	t.Logf("with an xl that hangs, list ends after %.1f s", took.Seconds())
	if took > 2*xen.CallTime {
		t.Errorf("with an xl that hangs, list ends after %v, want at most %v", took, 2*xen.CallTime)
	}
	r = l.expect(t, 1, "env", "PATH=/run/none", "numavisor", "list")
	if !strings.Contains(r.stderr, "not installed") {
		t.Errorf("the error does not say that xl is missing:\n%s", r.stderr)
	}
	if after := l.stateOfXen(t); after != before {
		t.Errorf("without xl the host changed from\n%s\nto\n%s", before, after)
	}
}

// usesPools places in pools, and not where there is none. Other guests than dom0 are gone.
func (l *labHost) usesPools(t *testing.T) {
	t.Helper()
	l.must(t, "pool", "split-by-node")
	out := l.must(t, "pool", "list").stdout
	for _, pool := range []string{"Pool-node0", "Pool-node3"} {
		if !strings.Contains(out, pool) {
			t.Errorf("pool list does not show %s:\n%s", pool, out)
		}
	}
	l.must(t, "create", "--xl", l.writeXL(t, "pooled", `pool = "Pool-node3"`+"\n"))
	l.affinityIs(t, "pooled", 3)
	v := l.show(t, "pooled")
	if node, ok := v.onlyNode(); !ok || node != 3 || v.total() < 190*topology.MiB {
		t.Errorf("memory by node is %v, want 192 MiB on node 3", v.Truth.MemoryByNode)
	}
	l.expect(t, 1, "numavisor", "bind", "pooled", "--nodes", "0") // its pool has no CPU there
	l.affinityIs(t, "pooled", 3)
	l.must(t, "delete", "pooled")
}
