package xen

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
)

// recreateTime is the deadline of a live migration to this host. It is long: xl that is ended while it copies the
// last pages leaves the VM suspended.
const recreateTime = time.Hour

// incoming is what xl adds to the name of the copy until it takes over (xl migrate-receive).
const incoming = "--incoming"

// Recreate implements apply.Recreator by `xl migrate` to this host: libxl takes the memory of the copy from the nodes
// of the CPUs in its configuration. Once begun, it does not end with the context, since the VM could stay suspended.
func (d *Driver) Recreate(
	ctx context.Context, name string, placed guest.Placement, definition []byte,
) (run string, err error) {
	fail := func(err error) error { return fmt.Errorf("making VM %s again: %w", name, err) }
	id, uuid, err := d.find(ctx, name)
	if err != nil {
		return "", err
	}
	if _, _, err := d.find(ctx, name+incoming); !errors.Is(err, guest.ErrNotFound) {
		return "", fail(errors.Join(err, fmt.Errorf("%w: a copy of it, %s%s, exists; if no 'xl migrate' runs, an "+
			"earlier attempt left it: end it with 'xl destroy %[2]s%[3]s'", guest.ErrRefused, name, incoming)))
	}
	file, err := d.copyConfig(ctx, id, uuid, name, &placed, definition)
	if err != nil {
		return "", fail(err)
	}
	defer os.Remove(file)
	if err := ctx.Err(); err != nil {
		return "", fail(err)
	}
	whole := context.WithoutCancel(ctx)
	_, failed := d.call(whole, recreateTime, "xl", "migrate", "-s", "", "-C", file, strconv.Itoa(id),
		"xl migrate-receive")
	if failed != nil {
		return "", fail(errors.Join(refused(failed), d.dropCopy(whole, name)))
	}
	now, _, err := d.find(whole, name)
	if err == nil && now == id {
		err = fmt.Errorf("xl migrate ended without an error, and domain %d still is the VM", id)
	}
	return strconv.Itoa(now), err
}

// copyConfig writes the configuration of a guest's copy into a file: bound as placed, with the guest's UUID. The caller
// removes the file.
func (d *Driver) copyConfig(
	ctx context.Context, id int, uuid, name string, placed *guest.Placement, definition []byte,
) (string, error) {
	text, err := d.configFor(ctx, id, name, definition)
	if err != nil {
		return "", fmt.Errorf("%w: %w", guest.ErrRefused, err)
	}
	c, err := ParseConfig(text)
	if err != nil {
		return "", err
	}
	return writeConfig(append(c.Rewrite(placed), "uuid = \""+uuid+"\"\n"...))
}

// dropCopy ends the copy that a failed migration has left.
func (d *Driver) dropCopy(ctx context.Context, name string) error {
	id, _, err := d.find(ctx, name+incoming)
	switch {
	case errors.Is(err, guest.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	_, err = d.call(ctx, d.build, "xl", "destroy", strconv.Itoa(id))
	return err
}

// configFor returns the configuration of a guest: the operator's, or one computed from what xl reports.
func (d *Driver) configFor(ctx context.Context, id int, name string, definition []byte) ([]byte, error) {
	if len(definition) > 0 {
		return definition, checkDefinition(name, definition)
	}
	out, err := d.xl(ctx, "list", "-l", strconv.Itoa(id))
	if err != nil {
		return nil, err
	}
	text, err := computeConfig(out)
	if err != nil {
		return nil, fmt.Errorf("%w; give the file with which the VM was created (--xl)", err)
	}
	return text, nil
}

// checkDefinition refuses an operator's configuration that would change the VM: of another name, with another UUID, or
// with network cards whose addresses xl would choose again.
func checkDefinition(name string, definition []byte) error {
	c, err := ParseConfig(definition)
	if err != nil {
		return err
	}
	if named, err := c.Name(); err != nil || named != name {
		return fmt.Errorf("the configuration has the name %q, and the VM is %s", named, name)
	}
	for _, key := range []string{"uuid", "vnuma", "pci"} {
		if _, ok := c.get(key); ok {
			return fmt.Errorf("the configuration has %s, with which a VM cannot be made again; see "+
				"'numavisor bind --help'", key)
		}
	}
	cards, _ := c.get("vif")
	for _, card := range cards.list {
		if !strings.Contains(strings.ToLower(card.text), "mac=") {
			return fmt.Errorf("vif %q has no mac, so that the VM would get another network address: add the present "+
				"one ('xl network-list %s')", card.text, name)
		}
	}
	return nil
}
