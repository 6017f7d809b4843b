package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/labtest"
	"github.com/numavisor/numavisor/lab/rotate"
)

// bootXenPair boots two Xen hosts on a cable, where root of each reaches the other by ssh.
func bootXenPair(t *testing.T) (first, second *labHost) {
	t.Helper()
	labtest.NeedsLab(t)
	first, second = bootXenWith(t, serverProgram(t)), bootXenWith(t, serverProgram(t))
	if _, _, err := lab.Connect(t.Context(), first.Host, second.Host); err != nil {
		t.Fatal(err)
	}
	return first, second
}

// isOnlyOn requires that a VM works on a host, bound to one of the nodes, and that the other host has nothing of it.
func isOnlyOn(t *testing.T, at, other *labHost, name string, nodes topology.NodeSet) {
	t.Helper()
	at.isBound(t, name, nodes)
	if _, err := at.Bandwidth(at.ctx, name, 100*time.Millisecond); err != nil {
		t.Errorf("%s does not work: %v", name, err)
	}
	if left := other.sh(t, "xl list"); strings.Contains(left, name) {
		t.Errorf("%s is left on the other host:\n%s", name, left)
	}
	if seen := at.show(t, name); len(seen.Truth.Differences) > 0 {
		t.Errorf("%s differs from what is recorded: %v", name, seen.Truth.Differences)
	}
}

// logXenPair prints, if the test fails, what xl and the daemons of two hosts have logged.
func logXenPair(t *testing.T, first, second *labHost) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for i, l := range []*labHost{first, second} {
			t.Logf("lab%d: %s", i+1, l.run(t, "sh", "-c",
				"xl list; tail -n 40 /run/up.log /run/daemon.log /var/log/xen/xl-*.log").stdout)
		}
	})
}

// Without a fleet, a VM migrates over ssh to a Xen host where another VM has the node that it comes from. Its memory is
// where the placement on the target says.
func TestLabXenMigratesBetweenHosts(t *testing.T) {
	rotate.Test(t, 0)
	first, second := bootXenPair(t)
	logXenPair(t, first, second)
	first.must(t, "create", "--xl", first.writeXL(t, "web", ""))
	home, _ := first.show(t, "web").onlyNode()
	second.must(t, "create", "--xl", second.writeXL(t, "stays", fmt.Sprintf("cpus = \"nodes:%d\"\n", home)))
	for l, name := range map[*labHost]string{first: "web", second: "stays"} {
		if err := l.AwaitGuest(l.ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	t.Log(first.must(t, "migrate", "web", "--to", "lab2").stdout)
	t.Logf("migrated after %v (emulated hosts)", time.Since(began).Round(time.Second))
	isOnlyOn(t, second, first, "web", topology.SetOf[topology.NodeID](0, 1, 2, 3).Minus(topology.SetOf(home)))
}

// A fleet of two Xen hosts lets a VM migrate. The source's daemon is killed while xl copies the memory: one VM is left
// all the same, with its UUID, and its memory is where the fleet placed it.
func TestLabXenFleetMigrates(t *testing.T) {
	rotate.Test(t, 1)
	first, second := bootXenPair(t)
	logXenPair(t, first, second)
	f := upXen(t, first, "lab1:8443")
	var join fleetapi.NewJoin
	f.request(t, "POST", "/v1/joins", `{}`, &join)
	daemon := "setsid numavisor daemon --images /lab"
	second.sh(t, fmt.Sprintf("%s --join %s --ca-fingerprint %s --token %s >/run/daemon.log 2>&1 </dev/null &", daemon,
		join.Address, join.Fingerprint, join.Token))
	f.ready(t, 2)
	f.request(t, "POST", "/v1/hosts/lab1/cordon", "", nil) // the VM begins on lab2, whose daemon runs alone
	f.request(t, "POST", "/v1/vms", xenRequest("db"), nil)
	vm := f.until(t, "db", fleetapi.VMRunning)
	f.request(t, "POST", "/v1/hosts/lab1/uncordon", "", nil)
	second.isBound(t, "db", vm.Placement.Nodes)
	uuid := second.uuidOf(t, "db")
	if err := second.AwaitGuest(second.ctx, "db"); err != nil {
		t.Fatal(err)
	}

	f.request(t, "POST", "/v1/vms/db/migrate", `{"to": "lab1"}`, nil)
	f.await(t, "xl copies the VM's memory", func() bool {
		return strings.Contains(first.run(t, "xl", "list").stdout, "db--incoming")
	})
	second.sh(t, "pkill -9 -x numavisor; sleep 1; "+daemon+" >>/run/daemon.log 2>&1 </dev/null &")
	at, other := first, second
	if vm = f.arrives(t, "db"); vm.Host == "lab2" {
		at, other = second, first
	}
	t.Logf("after the source's daemon was killed, the VM runs on %s", vm.Host)
	isOnlyOn(t, at, other, "db", vm.Placement.Nodes)
	if now := at.uuidOf(t, "db"); now != uuid {
		t.Errorf("its UUID was %s and is %s", uuid, now)
	}
}

// arrives waits until a VM runs and does not migrate.
func (f *xenFleet) arrives(t *testing.T, name string) (vm fleetapi.VM) {
	t.Helper()
	f.await(t, name+" runs", func() bool {
		vm = fleetapi.VM{} // an answer leaves out what does not hold
		f.request(t, "GET", "/v1/vms/"+name, "", &vm)
		return vm.State == fleetapi.VMRunning && vm.Migration == nil
	})
	return vm
}
