package libvirt

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/guest"
)

// RewriteForTarget returns the migratable XML of a running guest for the target of its
// migration: pins, numatune and intent are those of the target's placement, and nothing
// remains of the source's. Everything that the guest sees, and how QEMU holds its memory,
// stays: both must be the same on both hosts. A placement with other cells or pages is a
// *ContradictionError.
func RewriteForTarget(migratableXML []byte, intent Metadata) ([]byte, error) {
	doc, err := parse(migratableXML)
	if err != nil {
		return nil, err
	}
	d, err := doc.domain()
	if err != nil {
		return nil, err
	}
	p := intent.Placement
	w := &writer{editor: editor{doc: doc}, root: doc.root, domain: d, placement: p,
		shown: len(d.Config.Cells) > 0}
	for _, step := range []func() error{
		func() error { return checkPlacement(p) },
		func() error { return checkSingle(doc.root) },
		func() error { return agree(d, p) },
		func() error { return hostNodesOfDevices(doc.root, p.Nodes) },
		w.sameGuest,
		func() error { return w.metadata(intent) }, w.vcpu, w.cpuTune, w.numaTune,
	} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("binding VM %q for the target: %w", d.Name, err)
		}
	}
	return w.result(), nil
}

// sameGuest refuses a placement that would change what the guest sees, or the
// size of its pages.
func (w *writer) sameGuest() error {
	c, p := w.domain.Config, w.placement
	const remedy = "place the VM with the cells and pages that it has: a migration cannot change them"
	switch {
	case c.PageSize != p.PageSize:
		return &ContradictionError{Field: "page size", XML: c.PageSize.String(), Placement: p.PageSize.String(),
			Remedy: remedy}
	case len(c.Cells) > 0 && !w.sameCells(), len(c.Cells) == 0 && p.Visible && len(p.Cells) > 1:
		return &ContradictionError{Field: "VM cells", XML: fmt.Sprintf("%d visible cells", len(c.Cells)),
			Placement: fmt.Sprintf("has %d of other sizes or vCPUs", len(p.Cells)), Remedy: remedy}
	}
	return nil
}

// storageFault says why a domain cannot migrate with its devices and disks as they are,
// and what to do; empty: nothing is known to prevent it. local reports whether the
// file system of a path is certainly one that no other host shares.
func storageFault(root *element, copyStorage bool, local func(path string) bool) string {
	devices := root.child("devices")
	for _, e := range devices.all("hostdev") {
		if e.attr("type") == "pci" || e.attr("type") == "mdev" {
			return "a host device is passed through to it (<hostdev>): detach it first"
		}
	}
	for _, e := range devices.all("filesystem") {
		if target := e.child("target").attr("dir"); target != "" {
			return "it shares a folder of this host (<filesystem> " + target + "): detach it first"
		}
	}
	if root.child("launchSecurity") != nil {
		return "its memory is encrypted (<launchSecurity>)"
	}
	if copyStorage {
		return ""
	}
	for _, e := range devices.all("disk") {
		source := e.child("source")
		path := source.attr("file")
		switch {
		case e.child("readonly") != nil || e.child("shareable") != nil:
		case path != "" && local(path):
			return fmt.Sprintf("disk %s (%s) is on a file system that the target does not share: "+
				"put it on shared storage, or ask for a copy of the disks", e.child("target").attr("dev"), path)
		case e.attr("type") == "dir" || e.attr("type") == "vhostuser":
			return fmt.Sprintf("disk %s is of type %s", e.child("target").attr("dev"), e.attr("type"))
		}
	}
	return ""
}

// magicOfLocal are file systems of one host, by the number that statfs returns. libvirt
// decides about all others (virFileIsSharedFS), network file systems among them.
var magicOfLocal = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC,
	unix.OVERLAYFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.RAMFS_MAGIC, zfsMagic}

const zfsMagic = 0x2fc12fc1 // OpenZFS, include/sys/fs/zfs.h

// isLocal reports whether a file is on a file system of this host alone. A file that cannot be
// asked about is libvirt's to judge.
func isLocal(path string) bool {
	var s unix.Statfs_t
	if unix.Statfs(path, &s) != nil {
		return false
	}
	return slices.Contains(magicOfLocal, int64(s.Type)) //nolint:unconvert // int32 on some platforms
}

// checkMovableByMigration refuses a guest whose storage or devices belong to this host.
func checkMovableByMigration(migratableXML []byte, copyStorage bool) error {
	doc, err := parse(migratableXML)
	if err != nil {
		return err
	}
	if why := storageFault(doc.root, copyStorage, isLocal); why != "" {
		return fmt.Errorf("%w: %s", guest.ErrRefused, strings.TrimSpace(why))
	}
	return nil
}
