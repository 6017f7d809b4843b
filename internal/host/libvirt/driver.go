package libvirt

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"libvirt.org/go/libvirt"

	"github.com/numavisor/numavisor/internal/guest"
)

// Driver talks to one libvirt daemon. It is safe for concurrent use.
//
// Reads and control calls have a connection each: the daemon serves five calls
// of one connection at a time, and a control call on a guest can take as long
// as its memory takes to move. Contexts limit every call; without a deadline
// it is 30 s.
type Driver struct {
	// Arguments returns the arguments of a process, the program's name first. Nil: the driver reads
	// /proc/PID/cmdline, which can wait forever.
	Arguments func(pid int) ([]string, error)

	uri           string
	runDir        string
	reads, writes *line[*libvirt.Connect]
	readings      readings
}

// New returns a driver for the daemon at a libvirt URI; empty means
// DefaultURI. It connects with the first call.
func New(uri string) *Driver {
	uri = cmp.Or(uri, DefaultURI())
	dial := func() (*libvirt.Connect, error) { return dial(uri) }
	seen := new(atomic.Bool)
	return &Driver{
		uri: uri, runDir: runDirOf(uri),
		reads:  &line[*libvirt.Connect]{dial: dial, broken: broken, seen: seen},
		writes: &line[*libvirt.Connect]{dial: dial, broken: broken, seen: seen},
	}
}

// Close closes both connections.
func (d *Driver) Close() {
	d.reads.close()
	d.writes.close()
}

// Connect opens the connection of control calls. Without it the first change opens it, and waits for that.
func (d *Driver) Connect(ctx context.Context) error {
	return fail("connecting", "", d.writes.control(ctx, func(*libvirt.Connect) error { return nil }))
}

// URI names the daemon.
func (d *Driver) URI() string { return d.uri }

// Name is the hypervisor's name in inventories.
func (d *Driver) Name() guest.Hypervisor { return guest.LibvirtQEMU }

// Seconds between keepalive messages, and how many may stay unanswered: a
// hanging daemon is noticed after half a minute.
const (
	keepAliveSeconds = 5
	keepAliveMisses  = 5
)

func dial(uri string) (*libvirt.Connect, error) {
	if err := startEvents(); err != nil {
		return nil, err
	}
	conn, err := libvirt.NewConnect(uri)
	if err != nil {
		return nil, err
	}
	// Drivers inside this process (test:///) have no connection that needs
	// keepalive.
	if err := conn.SetKeepAlive(keepAliveSeconds, keepAliveMisses); err != nil && broken(err) {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// startEvents runs libvirt's event loop, which keepalive needs. The loop
// belongs to the process, not to a connection, and libvirt has no way to end
// it: it lives as long as the process. It needs no timer: handles and timeouts that are added interrupt its sleep
// (virEventPollInterruptLocked in src/util/vireventpoll.c, and g_source_attach since libvirt 6.1).
var startEvents = sync.OnceValue(func() error {
	if err := libvirt.EventRegisterDefaultImpl(); err != nil {
		return err
	}
	go func() {
		for libvirt.EventRunDefaultImpl() == nil {
		}
	}()
	return nil
})

// runDirOf is the folder of the pid files of libvirt's QEMU driver.
func runDirOf(uri string) string {
	if strings.HasSuffix(uri, "/session") {
		return filepath.Join(cmp.Or(os.Getenv("XDG_RUNTIME_DIR"), "/run"), "libvirt", "qemu", "run")
	}
	return "/run/libvirt/qemu"
}

// read runs an idempotent call on the guest of that name or UUID.
func (d *Driver) read(ctx context.Context, op, name string, call func(*libvirt.Domain) error) error {
	return fail(op, name, d.reads.read(ctx, onDomain(name, call)))
}

// control runs a changing call on the guest of that name or UUID.
func (d *Driver) control(ctx context.Context, op, name string, call func(*libvirt.Domain) error) error {
	return fail(op, name, d.writes.control(ctx, onDomain(name, call)))
}

func onDomain(name string, call func(*libvirt.Domain) error) func(*libvirt.Connect) error {
	return func(c *libvirt.Connect) error {
		dom, err := lookUp(c, name)
		if err != nil {
			return err
		}
		defer dom.Free()
		return call(dom)
	}
}

// lookUp finds a guest by its UUID, by which most callers know it and which is
// unique, else by its name.
func lookUp(c *libvirt.Connect, name string) (*libvirt.Domain, error) {
	if len(name) == 36 {
		if dom, err := c.LookupDomainByUUIDString(name); err == nil {
			return dom, nil
		}
	}
	return c.LookupDomainByName(name)
}
