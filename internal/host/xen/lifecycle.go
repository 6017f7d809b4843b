package xen

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
)

// Start implements operate.Domains: it creates a guest from an xl configuration, and records its
// intent. xl stores no configuration, so only a transient guest can be started.
func (d *Driver) Start(ctx context.Context, g guest.Definition, transient bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c, err := ParseConfig(g.Text)
	if err != nil {
		return fmt.Errorf("creating VM %s: %w", g.Name, err)
	}
	if name, err := c.Name(); err != nil || name != g.Name {
		return fmt.Errorf("creating VM %s: its configuration has the name %q", g.Name, name)
	}
	if _, _, err := d.find(ctx, g.Name); err == nil {
		return fmt.Errorf("creating VM %s: %w", g.Name, guest.ErrExists)
	} else if !errors.Is(err, guest.ErrNotFound) {
		return fmt.Errorf("creating VM %s: %w", g.Name, err)
	}
	if !transient {
		return fmt.Errorf("creating VM %s with a stored configuration: %w: xl stores none; the VM starts again from "+
			"its file", g.Name, guest.ErrRefused)
	}
	file, err := writeConfig(g.Text)
	if err != nil {
		return err
	}
	defer os.Remove(file)
	if _, err := d.call(ctx, d.build, "xl", "create", "-q", file); err != nil {
		return d.notCreated(ctx, g.Name, err)
	}
	if g.Intent == nil {
		return nil
	}
	if err := d.Record(ctx, g.Name, *g.Intent); err != nil {
		return errors.Join(err, d.abandon(ctx, g.Name))
	}
	return nil
}

// notCreated ends what an unsuccessful xl create may have left.
func (d *Driver) notCreated(ctx context.Context, name string, err error) error {
	err = refused(fmt.Errorf("creating VM %s: %w", name, err))
	if left := d.abandon(ctx, name); left != nil && !errors.Is(left, guest.ErrNotFound) {
		return errors.Join(err, left)
	}
	return err
}

// abandon ends a guest that was just created, also if the caller's context has ended.
func (d *Driver) abandon(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.build)
	defer cancel()
	return d.Remove(ctx, name)
}

func writeConfig(text []byte) (string, error) {
	f, err := os.CreateTemp("", "numavisor-*.cfg")
	if err != nil {
		return "", err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}

// Remove implements operate.Domains. The guest ends at once. One that reboots meanwhile is ended again: it is gone once
// the xl that would make it again has ended, too.
func (d *Driver) Remove(ctx context.Context, name string) error {
	_, uuid, err := d.find(ctx, name)
	if err != nil {
		return err
	}
	for {
		ended := d.on(ctx, "ending", name, d.build, func(id string) []string { return []string{"destroy", id} })
		if ended != nil && !errors.Is(ended, guest.ErrNotFound) {
			return ended
		}
		_, now, err := d.find(ctx, name)
		if err != nil && !errors.Is(err, guest.ErrNotFound) {
			return errors.Join(ended, err)
		}
		if err != nil || now != uuid || uuid == "" {
			return errors.Join(ended, d.forget(ctx, name, uuid))
		}
	}
}

// Undefine implements operate.Domains; a guest of Xen that does not run does not exist.
func (d *Driver) Undefine(ctx context.Context, name string) error {
	if _, _, err := d.find(ctx, name); err != nil {
		return err
	}
	return fmt.Errorf("removing the configuration of VM %s: it runs: %w", name, guest.ErrRefused)
}

// Launch implements operate.Domains; a guest of Xen that does not run does not exist.
func (d *Driver) Launch(ctx context.Context, name string) error {
	if _, _, err := d.find(ctx, name); err != nil {
		return err
	}
	return nil
}

// ShutDown implements operate.Domains.
func (d *Driver) ShutDown(ctx context.Context, name string) error {
	return d.on(ctx, "shutting down", name, d.limit, func(id string) []string { return []string{"shutdown", id} })
}

// PowerOff implements operate.Domains: the guest is gone then.
func (d *Driver) PowerOff(ctx context.Context, name string) error {
	err := d.Remove(ctx, name)
	if errors.Is(err, guest.ErrNotFound) {
		return nil
	}
	return err
}

func sortByName(guests []inventory.Guest) {
	slices.SortFunc(guests, func(a, b inventory.Guest) int { return strings.Compare(a.Name, b.Name) })
}
