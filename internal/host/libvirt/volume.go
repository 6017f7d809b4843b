package libvirt

import (
	"context"

	"libvirt.org/go/libvirt"
)

// VolumePath returns the path of a volume of a storage pool. The pool must be active.
func (d *Driver) VolumePath(ctx context.Context, pool, volume string) (path string, err error) {
	err = d.reads.read(ctx, func(c *libvirt.Connect) error {
		p, err := c.LookupStoragePoolByName(pool)
		if err != nil {
			return err
		}
		defer func() { _ = p.Free() }()
		v, err := p.LookupStorageVolByName(volume)
		if err != nil {
			return err
		}
		defer func() { _ = v.Free() }()
		path, err = v.GetPath()
		return err
	})
	return path, fail("finding volume "+volume+" of pool "+pool, "", err)
}
