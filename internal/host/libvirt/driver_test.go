package libvirt

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"libvirt.org/go/libvirt"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// testDriver connects to libvirt's own simulated hypervisor, which runs inside
// the library. Its state is per connection, so one connection serves both.
func testDriver(t *testing.T) *Driver {
	t.Helper()
	d := New("test:///default")
	_, err := d.Capabilities(within(t, 10*time.Second))
	if errors.Is(err, ErrNoLibrary) {
		t.Skipf("needs libvirt's library: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	d.writes = d.reads
	t.Cleanup(d.Close)
	return d
}

// Connect opens the connection of changes, which reads do not use.
func TestConnect(t *testing.T) {
	testDriver(t) // skips without the library
	d := New("test:///default")
	defer d.Close()
	if err := d.Connect(within(t, 10*time.Second)); err != nil || d.writes.now == nil || d.reads.now != nil {
		t.Errorf("%v; writes %v, reads %v", err, d.writes.now, d.reads.now)
	}
}

// call changes a guest in a way that the program itself never does.
func call(ctx context.Context, d *Driver, name string, change func(*libvirt.Domain) error) error {
	return d.control(ctx, "changing it", name, change)
}

func testXML(t *testing.T, name string) []byte {
	t.Helper()
	s, p := newGuest(4, 512*topology.MiB)
	s.Name, p.Guest = name, name
	xml, err := DomainXML(Metadata{Spec: s, Placement: p}, Machine{})
	if err != nil {
		t.Fatal(err)
	}
	return []byte(strings.Replace(string(xml), "type='kvm'", "type='test'", 1))
}

func definition(t *testing.T, xml []byte) guest.Definition {
	t.Helper()
	g, _, err := Definition(xml)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestDriverLifecycle(t *testing.T) {
	d, ctx := testDriver(t), within(t, 20*time.Second)
	xml := testXML(t, "web1")
	steps := []struct {
		name  string
		do    func() error
		state string // "": gone
	}{
		{"create", func() error { return d.Create(ctx, "web1", xml, CreateOptions{Persistent: true}) }, "running"},
		{"suspend", func() error { return call(ctx, d, "web1", (*libvirt.Domain).Suspend) }, "paused"},
		{"resume", func() error { return d.Resume(ctx, "web1") }, "running"},
		{"shutdown", func() error { return call(ctx, d, "web1", (*libvirt.Domain).Shutdown) }, "shutoff"},
		{"start again", func() error { return call(ctx, d, "web1", (*libvirt.Domain).Create) }, "running"},
		{"destroy", func() error { return call(ctx, d, "web1", (*libvirt.Domain).Destroy) }, "shutoff"},
		{"undefine", func() error { return call(ctx, d, "web1", undefine) }, ""},
		{"start new", func() error { return d.Start(ctx, definition(t, xml), true) }, "running"},
		{"remove", func() error { return d.Remove(ctx, "web1") }, ""},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		l, err := d.Find(ctx, "web1")
		if s.state == "" {
			if !errors.Is(err, guest.ErrNotFound) {
				t.Fatalf("after %s: %+v, %v", s.name, l, err)
			}
			continue
		}
		if err != nil || l.State != s.state || l.Running() != (s.state != "shutoff") {
			t.Fatalf("after %s: %+v, %v", s.name, l, err)
		}
	}
}

// Whether a guest has a stored configuration decides whether binding it writes one.
func TestDriver_StoredConfigurations(t *testing.T) {
	d, ctx := testDriver(t), within(t, 20*time.Second)
	for name, transient := range map[string]bool{"persistent": false, "transient": true} {
		if err := d.Start(ctx, definition(t, testXML(t, name)), transient); err != nil {
			t.Fatal(err)
		}
		if g, err := d.Guest(ctx, name); err != nil || g.Persistent == transient {
			t.Errorf("%s: persistent %v, %v", name, g.Persistent, err)
		}
	}
	all, err := d.Guests(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range all {
		if g.Persistent != (g.Name != "transient") {
			t.Errorf("%s in the list: persistent %v", g.Name, g.Persistent)
		}
	}
}

func TestDriver_DistinguishesErrors(t *testing.T) {
	d, ctx := testDriver(t), within(t, 20*time.Second)
	xml := testXML(t, "web1")
	if err := d.Create(ctx, "web1", xml, CreateOptions{Persistent: true}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		do   func() error
		want error
		says string
	}{
		{"a guest that is not there", func() error { return d.Resume(ctx, "db") }, guest.ErrNotFound, "VM db: " +
			"resuming it: there is no such VM"},
		{"created twice", func() error { return d.Create(ctx, "web1", xml, CreateOptions{}) }, guest.ErrExists,
			"a VM of this name exists already"},
		{"resumed while running", func() error { return d.Resume(ctx, "web1") }, nil, "resuming it"},
		{"pinned to nothing", func() error { return d.PinVCPU(ctx, "web1", 0, topology.CPUSet{}) }, nil, "the CPU " +
			"set is empty"},
		{"unknown mode", func() error { return d.SetNUMA(ctx, "web1", "sticky", nodeSet("0"), Live) }, nil,
			"allowed: mode strict"},
		{"no support", func() error { _, err := d.MonitorCommand(ctx, "web1", "{}"); return err }, guest.ErrRefused,
			"the hypervisor refuses it"},
		{"broken XML", func() error { return d.Define(ctx, "web1", []byte("<domain>")) }, nil, "defining it"},
	} {
		err := c.do()
		if err == nil || !strings.Contains(err.Error(), c.says) || (c.want != nil && !errors.Is(err, c.want)) {
			t.Errorf("%s: %v; wanted kind %v saying %q", c.name, err, c.want, c.says)
		}
	}
}

func TestDriverPinsAndRecords(t *testing.T) {
	d, ctx := testDriver(t), within(t, 20*time.Second)
	if err := d.Start(ctx, definition(t, testXML(t, "web1")), true); err != nil {
		t.Fatal(err)
	}
	if err := d.PinEmulator(ctx, "web1", cpus("1,3")); err != nil { // vCPUs: only in the lab
		t.Fatal(err)
	}
	s, p := newGuest(4, 512*topology.MiB)
	p.MemoryMode = guest.MemoryStrict
	if err := d.Record(ctx, "web1", Metadata{Spec: s, Placement: p}); err != nil {
		t.Fatal(err)
	}
	g, err := d.Guest(ctx, "web1")
	if err != nil {
		t.Fatal(err)
	}
	if got := g.Config.EmulatorPin; !got.Equal(cpus("1,3")) {
		t.Errorf("pinned to %q", got)
	}
	if !g.Managed || cmp.Diff(*g.Placement, p) != "" || cmp.Diff(*g.Spec, s) != "" {
		t.Errorf("intent reads back as %+v", g.Placement)
	}
	all, err := d.Guests(ctx)
	if err != nil || !slices.ContainsFunc(all, func(g inventory.Guest) bool { return g.Name == "web1" && g.Managed }) {
		t.Errorf("%v, %v", all, err)
	}
	for range 2 { // removing a missing intent is no error
		if err := d.Forget(ctx, "web1"); err != nil {
			t.Fatal(err)
		}
	}
	if g, err := d.Guest(ctx, "web1"); err != nil || g.Managed || g.Placement != nil {
		t.Errorf("after Forget it still has an intent: %+v, %v", g.Placement, err)
	}
}

func TestDriverConfigures(t *testing.T) {
	d, ctx := testDriver(t), within(t, 20*time.Second)
	if err := d.Start(ctx, definition(t, testXML(t, "web1")), false); err != nil {
		t.Fatal(err)
	}
	s, p := newGuest(4, 512*topology.MiB)
	p.VCPUs[3].CPUs, p.MemoryMode = cpus("13"), guest.MemoryStrict
	if err := d.Configure(ctx, "web1", Metadata{Spec: s, Placement: p}); err != nil {
		t.Fatal(err)
	}
	stored, err := d.XML(ctx, "web1", Stored)
	if err != nil {
		t.Fatal(err)
	}
	c := mustParse(t, stored).Config
	if !c.Pins[3].Equal(cpus("13")) || c.NUMATune.Cells[1].Mode != "strict" {
		t.Errorf("stored: %+v %+v", c.Pins, c.NUMATune)
	}
	if err := d.Start(ctx, definition(t, testXML(t, "passing")), true); err != nil {
		t.Fatal(err)
	}
	p.Guest = "passing"
	if err := d.Configure(ctx, "passing", Metadata{Spec: s, Placement: p}); !errors.Is(err, guest.ErrTransient) {
		t.Errorf("a transient guest: %v", err)
	}
}

// libvirt has one error code for every change that a guest's state does not allow:
// the driver queries the state and does not read libvirt's text.
func TestDriver_StateThatDoesNotAllowAChange(t *testing.T) {
	d, ctx := testDriver(t), within(t, 60*time.Second)
	if err := d.Define(ctx, "off", testXML(t, "off")); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(ctx, definition(t, testXML(t, "passing")), true); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		scope Scope
		want  error
	}{"off": {Live, ErrNotRunning}, "passing": {Config, guest.ErrTransient}} {
		err := d.tune(ctx, "noting a title", name, c.scope,
			func(dom *libvirt.Domain, flags libvirt.DomainModificationImpact) error {
				return dom.SetMetadata(libvirt.DOMAIN_METADATA_TITLE, "a title", "", "", flags)
			})
		if !errors.Is(err, c.want) || errors.Is(err, guest.ErrRefused) {
			t.Errorf("guest %s: error is %v, want %v alone", name, err, c.want)
		}
	}
}

// TestDriverValidates checks the output of Rewrite against libvirt's own schema.
func TestDriverValidates(t *testing.T) {
	d, ctx := testDriver(t), within(t, 60*time.Second)
	if _, err := os.Stat("/usr/share/libvirt/schemas/domain.rng"); err != nil {
		t.Skipf("needs libvirt's schemas (Debian: apt install libvirt-daemon): %v", err)
	}
	for name, xml := range fixtures(t) {
		if name == "future" { // invalid today on purpose
			continue
		}
		before := mustParse(t, xml)
		p := small(before)
		if len(before.Config.Cells) > 0 {
			p.Cells = nil
			for _, c := range before.Config.Cells {
				p.Cells = append(p.Cells, guest.Cell{ID: c.ID, VCPUs: c.VCPUs, Memory: c.Memory, Nodes: p.Nodes})
			}
		}
		bound, err := Rewrite(xml, p, Metadata{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := validates(ctx, d, xml); err != nil {
			t.Errorf("%s: the fixture itself: %v", name, err)
		}
		if err := validates(ctx, d, bound); err != nil {
			t.Errorf("%s: %v\n%s", name, err, bound)
		}
	}
}

// validates asks only about the schema: the simulated hypervisor refuses most
// real guests later on, for other reasons.
func validates(ctx context.Context, d *Driver, xml []byte) error {
	err := d.reads.read(ctx, func(c *libvirt.Connect) error {
		dom, err := c.DomainDefineXMLFlags(string(xml), libvirt.DOMAIN_DEFINE_VALIDATE)
		if err == nil {
			err = errors.Join(dom.Undefine(), dom.Free())
		}
		return err
	})
	if errors.Is(err, libvirt.ERR_XML_INVALID_SCHEMA) || errors.Is(err, libvirt.ERR_XML_ERROR) {
		return err
	}
	return nil
}

func TestDriverCapabilities(t *testing.T) {
	d, ctx := testDriver(t), within(t, 10*time.Second)
	text, err := d.Capabilities(ctx)
	if err != nil || !strings.Contains(string(text), "<capabilities>") {
		t.Errorf("%v: %.100s", err, text)
	}
}

// TestDriverWithoutDaemon: a missing socket, and one whose daemon accepts and does
// not answer.
func TestDriverWithoutDaemon(t *testing.T) {
	testDriver(t) // skips without the library
	folder := t.TempDir()
	absent := fmt.Sprintf("qemu+unix:///system?socket=%s/absent", folder)
	start := time.Now()
	_, err := New(absent).Guests(within(t, 20*time.Second))
	if !errors.Is(err, ErrNoDaemon) || !strings.Contains(err.Error(), "systemctl start libvirtd") {
		t.Errorf("absent daemon: %v", err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("absent daemon: reported after %v", took)
	}
	mute := filepath.Join(folder, "mute")
	l, err := net.Listen("unix", mute)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	start = time.Now()
	_, err = New("qemu+unix:///system?socket=" + mute).Guests(within(t, 300*time.Millisecond))
	if !errors.Is(err, ErrTimeout) {
		t.Errorf("mute daemon: %v", err)
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("mute daemon: reported after %v", took)
	}
}

// TestDriverWithoutLibrary runs this test binary again where the library is
// hidden behind an empty file.
func TestDriverWithoutLibrary(t *testing.T) {
	if os.Getenv("NUMAVISOR_LIBRARY_HIDDEN") != "" {
		_, err := New("").Capabilities(within(t, 10*time.Second))
		if !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "apt install libvirt-daemon-system") {
			t.Errorf("error is %v", err)
		}
		_, err = New("").Guests(within(t, 10*time.Second))
		if !errors.Is(err, ErrNoLibrary) {
			t.Errorf("the second time: %v", err)
		}
		return
	}
	testDriver(t)
	libraries, _ := filepath.Glob("/usr/lib*/*/libvirt.so.0")
	more, _ := filepath.Glob("/usr/lib*/libvirt.so.0")
	libraries = append(libraries, more...)
	if os.Getuid() != 0 || len(libraries) == 0 {
		t.Skipf("needs root to hide the library (%v) in a mount namespace", libraries)
	}
	script := `for l in "$@"; do mount --bind /dev/null "$l" || exit 99; done; exec "$0" -test.run '^TestDriverWithoutLibrary$' -test.v`
	cmd := exec.Command("unshare", append([]string{"-m", "sh", "-c", script, os.Args[0]}, libraries...)...)
	cmd.Env = append(os.Environ(), "NUMAVISOR_LIBRARY_HIDDEN=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 99 {
		t.Skipf("needs mount namespaces: %s", out)
	}
	if err != nil || !strings.Contains(string(out), "PASS: TestDriverWithoutLibrary") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestErrorText(t *testing.T) {
	err := fail("pinning vCPU 3 to CPUs \"4-7\"", "web1",
		fmt.Errorf("%w: %w", context.DeadlineExceeded, ErrUnknownOutcome))
	const want = `VM web1: pinning vCPU 3 to CPUs "4-7": libvirt did not answer in time: its outcome is unknown` +
		"; check whether 'virsh list' answers: the daemon hangs, or one VM's start, stop or hook script blocks it; " +
		"read the VM's state again before repeating it"
	if err.Error() != want {
		t.Errorf("says\n%s\nwanted\n%s", err, want)
	}
	for code, kind := range map[libvirt.ErrorNumber]error{
		libvirt.ERR_NO_DOMAIN: guest.ErrNotFound, libvirt.ERR_OPERATION_TIMEOUT: ErrBusy,
		libvirt.ERR_AUTH_FAILED: ErrDenied, libvirt.ERR_NO_SUPPORT: guest.ErrRefused,
	} {
		if err := fail("x", "", libvirt.Error{Code: code, Message: "m"}); !errors.Is(err, kind) {
			t.Errorf("code %d: %v", code, err)
		}
	}
	for _, c := range []struct {
		err  libvirt.Error
		kind error
	}{
		{libvirt.Error{Code: libvirt.ERR_SYSTEM_ERROR, Domain: libvirt.FROM_RPC, Message: "Failed to connect " +
			"socket: Permission denied"}, ErrDenied},
		{libvirt.Error{Code: libvirt.ERR_SYSTEM_ERROR, Domain: libvirt.FROM_RPC, Message: "End of file while " +
			"reading data"}, ErrNoDaemon},
		{libvirt.Error{Code: libvirt.ERR_INTERNAL_ERROR, Domain: libvirt.FROM_RPC, Message: "client socket is " +
			"closed"}, ErrNoDaemon},
		{libvirt.Error{Code: libvirt.ERR_OPERATION_INVALID, Message: "can't change nodeset for strict mode for " +
			"running domain"}, guest.ErrRefused},
		{libvirt.Error{Code: libvirt.ERR_OPERATION_INVALID, Message: "Domain läuft nicht"}, guest.ErrRefused},
		{libvirt.Error{Code: libvirt.ERR_INTERNAL_ERROR, Domain: libvirt.FROM_NONE,
			Message: "libvirt.so.0: cannot open shared object file: No such file or directory"}, ErrNoLibrary},
		{libvirt.Error{Code: libvirt.ERR_NO_DOMAIN, Domain: libvirt.FROM_QEMU,
			Message: "Domain not found: no domain with matching name 'libvirt.so.0'"}, guest.ErrNotFound},
	} {
		if err := fail("x", "", c.err); !errors.Is(err, c.kind) {
			t.Errorf("%+v: %v", c.err, err)
		}
	}
	hostile := libvirt.Error{Code: libvirt.ERR_INTERNAL_ERROR, Domain: libvirt.FROM_QEMU, Message: "VM libvirt.so.0"}
	if err := fail("x", "", hostile); errors.Is(err, ErrNoLibrary) {
		t.Errorf("a VM's name passes for a missing library: %v", err)
	}
	if broken(libvirt.Error{Code: libvirt.ERR_INTERNAL_ERROR, Domain: libvirt.FROM_QEMU}) {
		t.Error("an error of QEMU breaks the connection")
	}
}

func TestPID(t *testing.T) {
	run, proc := t.TempDir(), t.TempDir()
	write := func(path, text string) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text),
			0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write(run+"/web1.pid", "4711\n")
	write(proc+"/4711/cmdline", "/usr/bin/qemu-system-x86_64\x00-name\x00guest=web1,debug-threads=on\x00")
	write(run+"/a,b.pid", "4712")
	write(proc+"/4712/cmdline", "qemu\x00-name\x00guest=a,,b,debug-threads=on\x00")
	write(run+"/reused.pid", "4713")
	write(proc+"/4713/cmdline", "sleep\x00guest\x00")
	write(run+"/gone.pid", "4714")
	write(run+"/bad.pid", "x")
	// libvirt escapes the name in the path as it does in XML (virPidFileBuildPath): a file may then have the plain
	// name of another guest.
	write(run+"/a&amp;b.pid", "4715")
	write(proc+"/4715/cmdline", "qemu\x00-name\x00guest=a&b,debug-threads=on\x00")
	write(run+"/a&amp;amp;b.pid", "4716")
	write(proc+"/4716/cmdline", "qemu\x00-name\x00guest=a&amp;b,debug-threads=on\x00")
	write(run+"/&lt;q&quot;&apos;&gt;.pid", "4717")
	write(proc+"/4717/cmdline", "qemu\x00-name\x00guest=<q\"'>,debug-threads=on\x00")
	for name, want := range map[string]int{"web1": 4711, "a,b": 4712, "a&b": 4715, "a&amp;b": 4716, `<q"'>`: 4717} {
		if got, err := pidOf(run, argumentsIn(proc), name); err != nil || got != want {
			t.Errorf("%s: %d, %v", name, got, err)
		}
	}
	for name, want := range map[string]error{"reused": ErrNotRunning, "gone": ErrNotRunning, "absent": ErrNotRunning,
		"bad": nil, "../web1": nil, "": nil} {
		pid, err := pidOf(run, argumentsIn(proc), name)
		if err == nil || (want != nil && !errors.Is(err, want)) {
			t.Errorf("%q: %d, %v", name, pid, err)
		}
	}
}
