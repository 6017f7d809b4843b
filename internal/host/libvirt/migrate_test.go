package libvirt

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"libvirt.org/go/libvirt"
	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// TestRewriteForTarget_LeavesNothingOfTheSource: a guest that is bound on the source
// arrives with the target's pins, nodes and intent, and with everything else unchanged:
// its memory backing and its cells among that, because QEMU's stream needs them.
func TestRewriteForTarget_LeavesNothingOfTheSource(t *testing.T) {
	for name, xml := range fixtures(t) {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				source := drawPlacement(rt, mustParse(t, xml))
				there, err := Rewrite(xml, source, Metadata{Host: guest.HostIdentity{ID: "source", Name: "a"}})
				if err != nil {
					rt.Fatal(err)
				}
				d := mustParse(t, there)
				target := drawPlacement(rt, d)
				target.PageSize = d.Config.PageSize
				if len(d.Config.Cells) == 0 {
					target.Visible = false
				}
				intent := Metadata{Host: guest.HostIdentity{ID: "target", Name: "b"}, Placement: target}
				arrives, err := RewriteForTarget(there, intent)
				if err != nil {
					rt.Fatalf("%v\nplacement %+v", err, target)
				}
				checkArrival(rt, d, arrives, intent)
				if diff := cmp.Diff(unbound(rt, there), unbound(rt, arrives)); diff != "" {
					rt.Fatalf("changed a part outside the binding:\n%s", diff)
				}
			})
		})
	}
}

func checkArrival(t *rapid.T, before Domain, arrives []byte, intent Metadata) {
	got, err := ParseDomain(arrives)
	if err != nil {
		t.Fatalf("reading it back: %v\n%s", err, arrives)
	}
	if got.Intent == nil || cmp.Diff(*got.Intent, intent) != "" {
		t.Errorf("intent reads back as %+v", got.Intent)
	}
	checkTune(t, got, intent.Placement)
	for _, v := range intent.Placement.VCPUs {
		if !got.Config.Pins[v.ID].Equal(v.CPUs) {
			t.Errorf("vCPU %d pinned to %q, not %q", v.ID, got.Config.Pins[v.ID], v.CPUs)
		}
	}
	if e := got.Config.EmulatorPin; !e.Equal(intent.Placement.Emulator) && !e.IsEmpty() {
		t.Errorf("emulator pinned to %q, not %q", e, intent.Placement.Emulator)
	}
	was, is := before.Config, got.Config
	if was.Source != is.Source || was.Shared != is.Shared || was.PageSize != is.PageSize ||
		was.Immediate != is.Immediate || cmp.Diff(was.Cells, is.Cells) != "" {
		t.Errorf("the guest's memory changed: %+v became %+v", was, is)
	}
}

// unbound is a document without pins, numatune and intent.
func unbound(t *rapid.T, xml []byte) string {
	return foreign(t, xml, []byte(`<domain><vcpu/><memoryBacking><source/><access/><hugepages><page/></hugepages>`+
		`<allocation/></memoryBacking><cpu><numa/></cpu></domain>`), guest.Placement{})
}

func TestRewriteForTarget_RefusesAnotherGuest(t *testing.T) {
	for _, c := range []struct {
		name, fixture string
		change        func(*guest.Placement)
		says          string
	}{
		{"page size", "minimal", func(p *guest.Placement) { p.PageSize = 2 * topology.MiB }, "page size"},
		{"cells that the guest does not have", "virt-manager", func(p *guest.Placement) {
			half := p.Cells[0].Memory / 2
			all := p.Cells[0].VCPUs
			p.Cells = []guest.Cell{{Memory: half, VCPUs: all, Nodes: p.Nodes}, {ID: 1, Memory: half, Nodes: p.Nodes}}
			p.Visible = true
		}, "VM cells"},
		{"vCPUs", "virt-manager", func(p *guest.Placement) {
			p.VCPUs, p.Cells[0].VCPUs = p.VCPUs[:3], allVCPUs(3)
		}, "vCPUs"},
		{"memory", "virt-manager", func(p *guest.Placement) { p.Cells[0].Memory *= 2 }, "memory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			xml := fixtures(t)[c.fixture]
			p := small(mustParse(t, xml))
			c.change(&p)
			var contradiction *ContradictionError
			_, err := RewriteForTarget(xml, Metadata{Placement: p})
			if !errors.As(err, &contradiction) || !strings.Contains(contradiction.Field, c.says) {
				t.Errorf("error is %v", err)
			}
		})
	}
}

func TestStorageFault(t *testing.T) {
	const local = `<disk type='file'><source file='/local/a.img'/><target dev='vda'/></disk>`
	for _, c := range []struct {
		name, devices, fault string
		copied               bool
	}{
		{name: "diskless"},
		{name: "shared", devices: `<disk type='file'><source file='/nfs/a.img'/><target dev='vda'/></disk>`},
		{name: "network",
			devices: `<disk type='network'><source protocol='rbd' name='p/a'/><target dev='vda'/></disk>`},
		{name: "local", devices: local, fault: "disk vda (/local/a.img) is on a file system"},
		{name: "local, copied", devices: local, copied: true},
		{name: "local, read only",
			devices: `<disk type='file'><source file='/local/a.iso'/><target dev='sda'/><readonly/></disk>`},
		{name: "empty drive", devices: `<disk type='file' device='cdrom'><target dev='sda'/></disk>`},
		{name: "passthrough", copied: true, devices: `<hostdev mode='subsystem' type='pci'/>`, fault: "<hostdev>"},
		{name: "USB", devices: `<hostdev mode='subsystem' type='usb'/>`},
		{name: "shared folder", devices: `<filesystem><source dir='/srv'/><target dir='t'/></filesystem>`,
			fault: "<filesystem> t"},
	} {
		t.Run(c.name, func(t *testing.T) {
			doc, err := parse([]byte("<domain><devices>" + c.devices + "</devices></domain>"))
			if err != nil {
				t.Fatal(err)
			}
			isLocal := func(path string) bool { return strings.HasPrefix(path, "/local/") }
			got := storageFault(doc.root, c.copied, isLocal)
			if c.fault == "" && got != "" || !strings.Contains(got, c.fault) {
				t.Errorf("fault is %q, not %q", got, c.fault)
			}
		})
	}
	err := checkMovableByMigration([]byte("<domain><launchSecurity type='sev'/></domain>"), false)
	if !errors.Is(err, guest.ErrRefused) {
		t.Errorf("an encrypted guest: %v", err)
	}
}

func TestPresence(t *testing.T) {
	for _, c := range []struct {
		name      string
		state     libvirt.DomainState
		reason    libvirt.DomainPausedReason
		departing bool
		transient bool
		want      guest.Presence
	}{
		{"runs", libvirt.DOMAIN_RUNNING, 0, false, false, guest.Runs},
		{"is copied", libvirt.DOMAIN_RUNNING, 0, true, false, guest.Departing},
		{"last step", libvirt.DOMAIN_PAUSED, libvirt.DOMAIN_PAUSED_MIGRATION, true, false, guest.Departing},
		{"arriving, or left", libvirt.DOMAIN_PAUSED, libvirt.DOMAIN_PAUSED_MIGRATION, false, false, guest.Suspended},
		{"post-copy broke", libvirt.DOMAIN_PAUSED, libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED, false, false, guest.Suspended},
		{"runs, and its memory is arriving", libvirt.DOMAIN_RUNNING,
			libvirt.DomainPausedReason(libvirt.DOMAIN_RUNNING_POSTCOPY), false, false, guest.Suspended},
		{"runs, and the rest of its memory is lost", libvirt.DOMAIN_RUNNING,
			libvirt.DomainPausedReason(libvirt.DOMAIN_RUNNING_POSTCOPY_FAILED), false, false, guest.Suspended},
		{"a user paused it", libvirt.DOMAIN_PAUSED, libvirt.DOMAIN_PAUSED_USER, false, false, guest.Runs},
		{"shut off", libvirt.DOMAIN_SHUTOFF, 0, false, false, guest.Stored},
		{"starts to arrive, or was destroyed", libvirt.DOMAIN_SHUTOFF, 0, false, true, guest.Changing},
		{"is destroyed while it arrives", libvirt.DOMAIN_SHUTDOWN, 0, false, true, guest.Changing},
		{"its guest shuts down", libvirt.DOMAIN_SHUTDOWN, 0, false, false, guest.Changing},
		{"is not known", libvirt.DOMAIN_NOSTATE, 0, false, false, guest.Changing},
	} {
		if got := presence(c.state, int(c.reason), c.departing, !c.transient); got != c.want {
			t.Errorf("%s: %v, not %v", c.name, got, c.want)
		}
	}
}

// A guest that ran on the target must not run here again: its disks are those of a later moment.
func TestBrokenPostCopy(t *testing.T) {
	for _, c := range []struct {
		state  libvirt.DomainState
		reason libvirt.DomainPausedReason
		want   bool
	}{
		{libvirt.DOMAIN_PAUSED, libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED, true},
		{libvirt.DOMAIN_PAUSED, libvirt.DOMAIN_PAUSED_POSTCOPY, true},
		{libvirt.DOMAIN_PAUSED, libvirt.DOMAIN_PAUSED_MIGRATION, false},
		{libvirt.DOMAIN_PAUSED, libvirt.DOMAIN_PAUSED_USER, false},
		{libvirt.DOMAIN_RUNNING, libvirt.DOMAIN_PAUSED_POSTCOPY, false},
	} {
		if got := brokenPostCopy(c.state, int(c.reason)); got != c.want {
			t.Errorf("state %d, reason %d: %v, not %v", c.state, c.reason, got, c.want)
		}
	}
}

func TestMigrationFlags(t *testing.T) {
	const always = libvirt.MIGRATE_LIVE | libvirt.MIGRATE_PEER2PEER | libvirt.MIGRATE_ABORT_ON_ERROR
	for _, c := range []struct {
		how  guest.Departure
		want libvirt.DomainMigrateFlags
	}{
		{guest.Departure{}, 0},
		{guest.Departure{AutoConverge: true}, libvirt.MIGRATE_AUTO_CONVERGE},
		{guest.Departure{PostCopy: true}, libvirt.MIGRATE_POSTCOPY},
		{guest.Departure{CopyStorage: true}, libvirt.MIGRATE_NON_SHARED_DISK},
	} {
		if got := migrationFlags(&c.how); got != always|c.want {
			t.Errorf("%+v: flags %#x, not %#x", c.how, got, always|c.want)
		}
	}
}

// A migration that cannot begin changes nothing, and what is here is read from the daemon.
func TestDriver_MigrateRefusesBeforeAnythingChanges(t *testing.T) {
	d, ctx := testDriver(t), within(t, 20*time.Second)
	if p, err := d.Presence(ctx, "web1"); err != nil || p != guest.Absent {
		t.Errorf("%v, %v", p, err)
	}
	if err := d.Create(ctx, "web1", testXML(t, "web1"), CreateOptions{Persistent: true}); err != nil {
		t.Fatal(err)
	}
	_, p := newGuest(3, 512*topology.MiB) // it has 4 vCPUs
	p.Guest = "web1"
	var contradiction *ContradictionError
	_, err := d.Migrate(ctx, guest.Departure{Name: "web1", URI: "test:///default", Intent: Metadata{Placement: p}})
	if !errors.As(err, &contradiction) {
		t.Errorf("error is %v", err)
	}
	if p, err := d.Presence(ctx, "web1"); err != nil || p != guest.Runs {
		t.Errorf("%v, %v", p, err)
	}
	if err := d.DiscardSuspended(ctx, "web1"); !errors.Is(err, ErrNotSuspended) {
		t.Errorf("removing a VM that runs: %v", err)
	}
	err = call(ctx, d, "web1", (*libvirt.Domain).Destroy)
	if p, unread := d.Presence(ctx, "web1"); errors.Join(err, unread) != nil || p != guest.Stored {
		t.Errorf("%v, %v", p, errors.Join(err, unread))
	}
	if err := d.DiscardSuspended(ctx, "web1"); err != nil {
		t.Error(err)
	}
	if p, err := d.Presence(ctx, "web1"); err != nil || p != guest.Absent {
		t.Errorf("%v, %v", p, err)
	}
}
