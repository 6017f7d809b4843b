package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/libvirt"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/inventory"
)

// away is a libvirt that cannot be queried, for a given reason.
type away struct{ kind error }

func (away) Name() guest.Hypervisor { return "qemu" }
func (a away) Guests(context.Context) ([]inventory.Guest, error) {
	return nil, &libvirt.Error{Op: "listing VMs", Kinds: []error{a.kind}, Err: errors.New("no")}
}

// A host without libvirt has no VMs of libvirt; a host whose libvirt does not
// answer may have some, and so may a host with a running VM that libvirt
// started.
func TestLibvirt_NotInstalledHidesNoVMs(t *testing.T) {
	for _, c := range []struct {
		name   string
		reason error
		runs   string // arguments of a process on the host
		absent bool
	}{
		{"no library", libvirt.ErrNoLibrary, "sleep 5", true},
		{"no library, a VM that others started", libvirt.ErrNoLibrary, "qemu-system-x86_64 -m 64", true},
		{"no library, a VM that libvirt started", libvirt.ErrNoLibrary,
			`qemu-system-x86_64 -object {"qom-type":"secret","id":"masterKey0"} -m 64`, false},
		{"no daemon", libvirt.ErrNoDaemon, "sleep 5", false},
		{"no access", libvirt.ErrDenied, "sleep 5", false},
	} {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, "proc", "7"), 0o755); err != nil {
			t.Fatal(err)
		}
		line := strings.ReplaceAll(c.runs, " ", "\x00") + "\x00"
		if err := os.WriteFile(filepath.Join(root, "proc", "7", "cmdline"), []byte(line), 0o644); err != nil {
			t.Fatal(err)
		}
		guests, err := libvirtGuests{away{c.reason}, linux.NewArguments(linux.Root(root))}.Guests(context.Background())
		if !errors.Is(err, c.reason) || len(guests) > 0 {
			t.Errorf("%s: error %v, guests %v", c.name, err, guests)
		}
		if errors.Is(err, observe.ErrNotInstalled) != c.absent {
			t.Errorf("%s: error %v", c.name, err)
		}
	}
}
