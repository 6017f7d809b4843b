package e2e_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/labtest"
	"github.com/numavisor/numavisor/lab/rotate"
)

// fleetLabs are two hosts on a cable that form a fleet: 'numavisor up' runs on the first
// one, and the daemon of the second one has joined it.
type fleetLabs struct {
	hosts map[string]*labHost // by their names in the fleet
	first *labHost
	token string // of the user admin
	// daemon is the command that starts the daemon of lab2 once it has joined.
	daemon string
}

const (
	fleetCA = "/var/lib/numavisor-server/ca.pem" // what users of the fleet need
	images  = "/var/lib/libvirt/images"
)

// serverProgram returns the program of the fleet's server as a lab needs it.
func serverProgram(t *testing.T) map[string]string {
	t.Helper()
	program, err := filepath.Abs("../../bin/numavisor-server")
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"numavisor-server": program}
}

// migrationURI is how the other host's libvirt daemon reaches this one's.
func migrationURI(c lab.Cabled) string { return "qemu+tcp://" + c.Address + "/system" }

// bootFleet boots two hosts and makes a fleet of them. No other lab runs.
func bootFleet(t *testing.T) *fleetLabs {
	t.Helper()
	labtest.NeedsLab(t)
	files := serverProgram(t)
	first := bootWith(t, "square4", lab.Options{Saved: true, Files: files})
	second := bootWith(t, "square4", lab.Options{Saved: true, Files: files})
	a, b, err := lab.Connect(t.Context(), first.Host, second.Host)
	if err != nil {
		t.Fatal(err)
	}
	f := &fleetLabs{hosts: map[string]*labHost{"lab1": first, "lab2": second}, first: first}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("lab2:\n%s", second.run(t, "tail", "-n", "40", "/run/daemon.log").stdout)
		}
	})
	f.up(t, "--migration-uri", migrationURI(a))
	var join fleetapi.NewJoin
	f.curl(t, "POST", "/v1/joins", `{}`, &join)
	f.daemon = "setsid numavisor daemon --images /lab --migration-uri " + migrationURI(b)
	second.sh(t, fmt.Sprintf("%s --join %s --ca-fingerprint %s --token %s >/run/daemon.log 2>&1 </dev/null &", f.daemon,
		join.Address, join.Fingerprint, join.Token))
	f.ready(t)
	return f
}

// up starts 'numavisor up' on lab1, and returns when the server answers.
func (f *fleetLabs) up(t *testing.T, flags ...string) {
	t.Helper()
	first := f.first
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("lab1:\n%s", first.run(t, "tail", "-n", "60", "/run/up.log").stdout)
		}
	})
	first.sh(t, "setsid numavisor up --address lab1:8443 --images /lab --images "+images+" "+strings.Join(flags, " ")+
		" >/run/up.log 2>&1 </dev/null &")
	f.token = strings.TrimSpace(first.sh(t, `until grep -A1 '^Token of user admin' /run/up.log | grep -o 'nv._[^ ]*'; do
  sleep 0.2; pgrep -f 'numavisor up' >/dev/null || { cat /run/up.log; exit 1; }; done
until curl -s --cacert `+fleetCA+` https://lab1:8443/openapi.json >/dev/null; do sleep 0.5; done`))
}

// ready waits until the server knows the nodes of all hosts.
func (f *fleetLabs) ready(t *testing.T) {
	t.Helper()
	f.await(t, 2*time.Minute, "all hosts are reachable", func() bool {
		var all fleetapi.Hosts
		f.curl(t, "GET", "/v1/hosts", "", &all)
		ready := 0
		for _, h := range all.Hosts {
			if h.State == fleetapi.HostReachable && !h.Reported.IsZero() {
				ready++
			}
		}
		return ready == len(f.hosts)
	})
}

// request sends a request as a user does.
func (f *fleetLabs) request(t *testing.T, method, path, body string) result {
	t.Helper()
	argv := []string{"curl", "-sS", "--fail-with-body", "--max-time", "300", "--cacert", fleetCA,
		"-H", "Authorization: Bearer " + f.token, "-X", method, "https://lab1:8443" + path}
	if body != "" {
		argv = append(argv, "-H", "Content-Type: application/json", "-d", body)
	}
	return f.first.run(t, argv...)
}

// curl sends a request, requires that it succeeds, and decodes the answer.
func (f *fleetLabs) curl(t *testing.T, method, path, body string, answer any) {
	t.Helper()
	r := f.request(t, method, path, body)
	if r.status != 0 {
		t.Fatalf("%s %s: status %d\n%s%s", method, path, r.status, r.stdout, r.stderr)
	}
	if answer != nil {
		if err := json.Unmarshal([]byte(r.stdout), answer); err != nil {
			t.Fatalf("%s %s: %v\n%s", method, path, err, r.stdout)
		}
	}
}

// await waits for a state of the fleet.
func (f *fleetLabs) await(t *testing.T, within time.Duration, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !done(); time.Sleep(time.Second) {
		if time.Now().After(end) {
			t.Log(f.request(t, "GET", "/v1/vms", "").stdout)
			for name, l := range f.hosts {
				t.Logf("%s: %s", name, l.run(t, "bash", "-c", "virsh list --all; for d in $(virsh -q list --name); do virsh domjobinfo $d; done; "+
					"tail -n 5 /run/libvirtd.log").stdout)
			}
			t.Fatalf("after %v: not yet: %s", within, what)
		}
	}
}

// vm returns a VM of the fleet.
func (f *fleetLabs) vm(t *testing.T, name string) fleetapi.VM {
	t.Helper()
	var v fleetapi.VM
	f.curl(t, "GET", "/v1/vms/"+name, "", &v)
	return v
}

// runsOn waits until a VM runs on a host, and checks with the kernel there that its
// memory and vCPUs are on the nodes that the server has chosen.
func (f *fleetLabs) runsOn(t *testing.T, name, host string, within time.Duration) fleetapi.VM {
	t.Helper()
	var v fleetapi.VM
	f.await(t, within, name+" runs on "+host, func() bool {
		v = f.vm(t, name)
		return v.State == fleetapi.VMRunning && v.Host == host && v.Migration == nil
	})
	f.boundAsChosen(t, v)
	return v
}

func (f *fleetLabs) boundAsChosen(t *testing.T, v fleetapi.VM) {
	t.Helper()
	seen := f.hosts[v.Host].show(t, v.Name)
	seen.vcpusIn(t, 1)
	seen.memoryIn(t, 0.98)
	if seen.Truth.Nodes.String() != v.Placement.Nodes.String() || len(seen.Truth.Differences) > 0 {
		t.Errorf("%s is on nodes %s of %s, the server chose %s; drift: %v", v.Name, seen.Truth.Nodes, v.Host,
			v.Placement.Nodes, seen.Truth.Differences)
	}
	for _, cell := range seen.Cells {
		for node, bytes := range cell.ByNode {
			if !cell.Intended.Contains(node) && bytes > cell.Memory/50 {
				t.Errorf("cell %s has %v on node %d, not on %s", cell.Name, bytes, node, cell.Intended)
			}
		}
	}
	for other, l := range f.hosts {
		if other != v.Host && strings.Contains(l.sh(t, "virsh -q list --all --name"), v.Name) {
			t.Errorf("%s runs on %s, and %s still has it", v.Name, v.Host, other)
		}
	}
}

// One request creates a VM bound on a host of a fleet. The VM migrates live, while it works, to
// the nodes that the server has chosen and claimed on the other host. A drain empties that host.
func TestLabFleetCreatesMigratesAndDrains(t *testing.T) {
	rotate.Test(t, 0)
	f := bootFleet(t)
	v := f.create(t, "m")
	var chosen fleetapi.Placement
	f.curl(t, "GET", "/v1/vms/m/placement", "", &chosen)
	if chosen.Why == nil || chosen.Why.Text == "" {
		t.Errorf("no reasons for the placement: %+v", chosen)
	}
	t.Logf("%s, nodes %s: %+v", v.Host, v.Placement.Nodes, chosen.Why)

	to := "lab2"
	if v.Host == to {
		to = "lab1"
	}
	began := time.Now()
	f.migrating(t, "m", to, v.Host, `, "max_downtime_ms": 1234`)
	limit := strings.TrimSpace(f.hosts[v.Host].sh(t, "virsh -q migrate-getmaxdowntime m"))
	arrived := f.runsOn(t, "m", to, 5*time.Minute)
	if arrived.Status == nil || arrived.Status.Downtime <= 0 || arrived.Status.Copied <= 0 {
		t.Errorf("downtime and copied bytes are unknown: %+v", arrived.Status)
	} else {
		t.Logf("migrated to %s, nodes %s: %v copied, downtime %v, running and verified after %v (an emulated host)", to,
			arrived.Placement.Nodes, arrived.Status.Copied, arrived.Status.Downtime,
			time.Since(began).Round(time.Second))
	}
	if limit != "1234" {
		t.Errorf("libvirt had a limit of %q ms for the downtime", limit)
	}
	f.worksOn(t, to, "m")

	f.curl(t, "POST", "/v1/hosts/"+to+"/drain", `{"post_copy": true}`, nil)
	began = time.Now()
	f.runsOn(t, "m", v.Host, 5*time.Minute)
	t.Logf("drained after %v", time.Since(began).Round(time.Second))
	f.worksOn(t, v.Host, "m")
	f.curl(t, "POST", "/v1/hosts/"+to+"/uncordon", "", nil)
	f.migratesWithItsDisks(t, v.Host, to)
	f.curl(t, "DELETE", "/v1/vms/m", "", nil)
	f.await(t, time.Minute, "m is deleted", func() bool {
		return strings.TrimSpace(f.hosts[v.Host].sh(t, "virsh -q list --all --name")) == ""
	})
}

// migratesWithItsDisks migrates a VM whose disk and seed of cloud-init are on its host alone.
func (f *fleetLabs) migratesWithItsDisks(t *testing.T, from, to string) {
	t.Helper()
	for _, l := range f.hosts {
		l.sh(t, "virsh -q pool-create-as lab dir --target /lab")
	}
	f.curl(t, "POST", "/v1/hosts/"+to+"/cordon", "", nil)
	f.hosts[from].sh(t, "qemu-img create -q -f qcow2 /lab/d.qcow2 16M && qemu-io -c 'write -P 0x5a 1M 1M' /lab/d.qcow2")
	f.curl(t, "POST", "/v1/vms", fmt.Sprintf(`{"project": "default", "spec": {"name": "d", "vcpus": 1, "memory": "96M"},
	"machine": {"kernel": %q, "initrd": %q, "cmdline": %q, "cloud_init": "#cloud-config\nhostname: d\n",
	"disks": [{"path": "/lab/d.qcow2"}]}}`, lab.GuestKernel, lab.GuestInitrd, lab.GuestCommandLine), nil)
	f.runsOn(t, "d", from, 3*time.Minute)
	f.curl(t, "POST", "/v1/hosts/"+to+"/uncordon", "", nil)
	f.curl(t, "POST", "/v1/vms/d/migrate", fmt.Sprintf(`{"to": %q, "copy_storage": true}`, to), nil)
	f.runsOn(t, "d", to, 5*time.Minute)
	target := f.hosts[to]
	if r := target.run(t, "qemu-io", "-r", "-U", "-c", "read -P 0x5a 1M 1M", "/lab/d.qcow2"); r.status != 0 ||
		strings.Contains(r.stdout, "Pattern verification failed") {
		t.Errorf("the disk has other data on the target: %s%s", r.stdout, r.stderr)
	}
	f.curl(t, "DELETE", "/v1/vms/d", "", nil)
}

// create asks for a VM with two cells, waits until it runs bound, and lets it work.
func (f *fleetLabs) create(t *testing.T, name string) fleetapi.VM {
	t.Helper()
	var v fleetapi.VM
	f.curl(t, "POST", "/v1/vms", fmt.Sprintf(`{"project": "default", "spec": {"name": %q, "vcpus": 2, "memory": "192M",
	"topology": {"mode": "cells", "count": 2}}, "machine": {"kernel": %q, "initrd": %q, "cmdline": %q}}`, name,
		lab.GuestKernel, lab.GuestInitrd, lab.GuestCommandLine), &v)
	v = f.runsOn(t, name, v.Host, 3*time.Minute)
	l := f.hosts[v.Host]
	if err := l.AwaitGuest(l.ctx, name); err != nil {
		t.Fatal(err)
	}
	if err := l.StartWork(l.ctx, []string{name}, 200*time.Millisecond, 100000); err != nil {
		t.Fatal(err)
	}
	return v
}

// worksOn checks that a VM uses its vCPUs.
func (f *fleetLabs) worksOn(t *testing.T, host, name string) {
	t.Helper()
	l := f.hosts[host]
	cpuTime := "virsh -q domstats " + name + " --cpu-total | grep cpu.time | cut -d= -f2"
	was := l.sh(t, cpuTime)
	f.await(t, time.Minute, name+" works on "+host, func() bool { return l.sh(t, cpuTime) != was })
}

// A daemon that is killed while libvirt migrates a VM, and a VM that ends on the target while it
// arrives, leave one running VM, and no reservation on the other host.
func TestLabFleetMigrationInterrupted(t *testing.T) {
	rotate.Test(t, 4)
	f := bootFleet(t)
	f.curl(t, "POST", "/v1/hosts/lab1/cordon", "", nil) // the VM begins on lab2, whose daemon runs alone
	v := f.create(t, "m")
	if v.Host != "lab2" {
		t.Fatalf("created on %s, although lab1 is cordoned", v.Host)
	}
	f.curl(t, "POST", "/v1/hosts/lab1/uncordon", "", nil)
	source := f.hosts["lab2"]

	f.migrating(t, "m", "lab1", "lab2", "")
	source.sh(t, "pkill -9 -x numavisor; sleep 1; "+f.daemon+" >>/run/daemon.log 2>&1 </dev/null &")
	at := f.settles(t, "m")
	t.Logf("the source's daemon was killed: m runs on %s", at)

	other := "lab1"
	if at == other {
		other = "lab2"
	}
	f.migrating(t, "m", other, at, "")
	f.hosts[other].sh(t, "virsh -q destroy m || true")
	t.Logf("m was destroyed on %s while it arrived: it runs on %s", other, f.settles(t, "m"))
}

// migrating asks for a migration with options, given as further members of the request, and returns when libvirt copies
// the VM's memory.
func (f *fleetLabs) migrating(t *testing.T, name, to, from, options string) {
	t.Helper()
	f.curl(t, "POST", "/v1/vms/"+name+"/migrate", fmt.Sprintf(`{"to": %q%s}`, to, options), nil)
	f.hosts[from].sh(t, fmt.Sprintf(`n=0; until virsh -q domjobinfo %s | grep -q 'Memory processed: *[1-9]'; do
	n=$((n + 1)); [ $n -lt 600 ] || { virsh domjobinfo %[1]s; exit 1; }; sleep 0.2; done`, name))
}

// settles waits until no migration of a VM is under way any more, checks that it runs once and
// works, and returns its host.
func (f *fleetLabs) settles(t *testing.T, name string) (host string) {
	t.Helper()
	var v fleetapi.VM
	f.await(t, 5*time.Minute, name+" runs, and does not migrate", func() bool {
		v = f.vm(t, name)
		return v.State == fleetapi.VMRunning && v.Migration == nil
	})
	f.boundAsChosen(t, v)
	f.worksOn(t, v.Host, name)
	for host, l := range f.hosts {
		if left := l.claims(t); left != "" {
			t.Errorf("%s still has reservations of commands in progress: %s", host, left)
		}
	}
	return v.Host
}

// The server has libvirt make a VM's disks, stop, start and delete the VM, and adopts one that others
// created. Each time the kernel shows the VM where the server says.
func TestLabFleetRunsTheLifeOfAVM(t *testing.T) {
	rotate.Test(t, 5)
	labtest.NeedsLab(t)
	l := bootWith(t, "square4", lab.Options{Saved: true, Files: serverProgram(t)})
	f := &fleetLabs{hosts: map[string]*labHost{"lab1": l}, first: l}
	l.sh(t, "echo '127.0.0.1 localhost lab1' > /etc/hosts; hostname lab1; ip link set lo up; mkdir -p "+images+`
qemu-img create -q -f qcow2 `+images+`/base.qcow2 64M
virsh -q pool-create-as pool dir --target /run/pool --build
virsh -q vol-create-as pool data.qcow2 32M --format qcow2`)
	f.up(t)
	f.ready(t)
	var v fleetapi.VM
	f.curl(t, "POST", "/v1/vms", fmt.Sprintf(`{"project": "default", "spec": {"name": "d", "vcpus": 1, "memory": "96M"},
	"machine": {"kernel": %q, "initrd": %q, "cmdline": %q, "disks": [{"path": "%s/d.qcow2", "base": "%[4]s/base.qcow2"},
	{"pool": "pool", "volume": "data.qcow2"}]}}`, lab.GuestKernel, lab.GuestInitrd, lab.GuestCommandLine, images), &v)
	v = f.runsOn(t, "d", "lab1", 3*time.Minute)
	disk := l.sh(t, "qemu-img info -U "+images+"/d.qcow2")
	if !strings.Contains(disk, "backing file: "+images+"/base.qcow2") {
		t.Errorf("the disk is no clone of the base image:\n%s", disk)
	}
	disks := l.sh(t, "virsh -q domblklist d")
	if !strings.Contains(disks, "d.qcow2") || !strings.Contains(disks, "data.qcow2") {
		t.Errorf("the VM's disks: %s", disks)
	}

	f.curl(t, "POST", "/v1/vms/d/stop", "", nil)
	f.await(t, 2*time.Minute, "d is stopped", func() bool { return f.vm(t, "d").State == fleetapi.VMStopped })
	if s := l.stateOf(t, "d"); s != "shut off" {
		t.Errorf("libvirt says that d is %s", s)
	}
	f.curl(t, "POST", "/v1/vms/d/start", "", nil)
	f.runsOn(t, "d", "lab1", 2*time.Minute)

	if err := l.StartGuest(l.ctx, lab.Guest{Name: "f"}); err != nil {
		t.Fatal(err)
	}
	f.await(t, time.Minute, "the server can adopt f", func() bool {
		return f.request(t, "POST", "/v1/adopt", `{"host": "lab1", "name": "f", "project": "default"}`).status == 0
	})
	f.runsOn(t, "f", "lab1", 2*time.Minute)

	for _, name := range []string{"d", "f"} {
		f.curl(t, "DELETE", "/v1/vms/"+name, "", nil)
	}
	f.await(t, 2*time.Minute, "both VMs are deleted", func() bool {
		return strings.TrimSpace(l.sh(t, "virsh -q list --all --name")) == ""
	})
	l.sh(t, "test -e "+images+"/d.qcow2 && virsh -q vol-info data.qcow2 --pool pool") // disks are not deleted
	if left := l.claims(t); left != "" {
		t.Errorf("reservations of commands in progress: %s", left)
	}
}
