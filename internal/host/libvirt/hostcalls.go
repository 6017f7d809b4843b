package libvirt

import (
	"context"
	"fmt"

	"github.com/numavisor/numavisor/internal/topology"
	"libvirt.org/go/libvirt"
)

// Capabilities returns the host's capabilities XML (virConnectGetCapabilities).
func (d *Driver) Capabilities(ctx context.Context) ([]byte, error) {
	var text string
	err := d.reads.read(ctx, func(c *libvirt.Connect) (err error) {
		text, err = c.GetCapabilities()
		return err
	})
	return []byte(text), fail("reading the host's capabilities", "", err)
}

// FreePages returns how many free pages of one size a node's pool has (virNodeGetFreePages).
func (d *Driver) FreePages(ctx context.Context, node topology.NodeID, size topology.Bytes) (uint64, error) {
	var free uint64
	err := d.reads.read(ctx, func(c *libvirt.Connect) error {
		counts, err := c.GetFreePages([]uint64{uint64(size / topology.KiB)}, int(node), 1, 0)
		if err == nil && len(counts) > 0 {
			free = counts[0]
		}
		return err
	})
	return free, fail(fmt.Sprintf("reading free pages of %v on node %d", size, node), "", err)
}

// SetPages asks for a pool of a number of pages on a node (virNodeAllocPages).
// The kernel may give fewer and libvirt reports success all the same: read the
// size back.
func (d *Driver) SetPages(ctx context.Context, node topology.NodeID, size topology.Bytes, pages uint64) error {
	return fail(fmt.Sprintf("setting %d pages of %v on node %d", pages, size, node), "",
		d.writes.control(ctx, func(c *libvirt.Connect) error {
			_, err := c.AllocPages(map[int]int64{int(size / topology.KiB): int64(pages)}, int(node), 1,
				libvirt.NODE_ALLOC_PAGES_SET)
			return err
		}))
}

// MonitorCommand sends a QMP command to the guest's QEMU and returns its
// answer. libvirt then logs the guest as tainted: use it only for facts that no
// other call returns.
func (d *Driver) MonitorCommand(ctx context.Context, name, command string) (string, error) {
	var answer string
	err := d.control(ctx, "sending it a monitor command", name, func(dom *libvirt.Domain) (err error) {
		answer, err = dom.QemuMonitorCommand(command, libvirt.DOMAIN_QEMU_MONITOR_COMMAND_DEFAULT)
		return err
	})
	return answer, err
}
