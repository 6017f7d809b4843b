package libvirt

import (
	"context"
	"errors"
	"fmt"

	"github.com/numavisor/numavisor/internal/guest"
	"libvirt.org/go/libvirt"
)

// View chooses one of a guest's two descriptions.
type View int

// The views.
const (
	Current View = iota // of the running process; of the next start if the guest does not run
	Stored              // of the next start, secrets included so that it can be defined again
)

// XML returns a guest's domain XML.
func (d *Driver) XML(ctx context.Context, name string, v View) ([]byte, error) {
	var text string
	flags := libvirt.DomainXMLFlags(0)
	if v == Stored {
		flags = libvirt.DOMAIN_XML_INACTIVE | libvirt.DOMAIN_XML_SECURE
	}
	err := d.read(ctx, "reading its XML", name, func(dom *libvirt.Domain) (err error) {
		if v == Stored {
			if persistent, err := dom.IsPersistent(); err != nil {
				return err
			} else if !persistent {
				return &Error{Op: "reading its stored XML", Guest: name, Kinds: []error{guest.ErrTransient}}
			}
		}
		text, err = dom.GetXMLDesc(flags)
		return err
	})
	return []byte(text), err
}

// Define stores a configuration for a guest of that name, new or in place of
// the one of the same name and UUID. It does not change a running guest.
func (d *Driver) Define(ctx context.Context, name string, xml []byte) error {
	return fail("defining it", name, d.writes.control(ctx, func(c *libvirt.Connect) error {
		dom, err := c.DomainDefineXML(string(xml))
		if err == nil {
			err = dom.Free()
		}
		return err
	}))
}

// CreateOptions say how to start a guest.
type CreateOptions struct {
	Persistent bool // store its configuration, which remains when it ends
	Paused     bool // do not let its vCPUs run yet
}

// Create starts a new guest, whose name its XML has, too. If it is persistent
// and does not start, Create removes its configuration.
func (d *Driver) Create(ctx context.Context, name string, xml []byte, o CreateOptions) error {
	const op = "creating it"
	flags := libvirt.DomainCreateFlags(0)
	if o.Paused {
		flags = libvirt.DOMAIN_START_PAUSED
	}
	return fail(op, name, d.writes.control(ctx, func(c *libvirt.Connect) error {
		if isThere(c, name) {
			return &Error{Op: op, Guest: name, Kinds: []error{guest.ErrExists}}
		}
		if !o.Persistent {
			dom, err := c.DomainCreateXML(string(xml), flags)
			if err == nil {
				return dom.Free()
			}
			return takenMeanwhile(c, op, name, err)
		}
		dom, err := c.DomainDefineXML(string(xml))
		if err != nil {
			return takenMeanwhile(c, op, name, err)
		}
		defer dom.Free()
		if err := dom.CreateWithFlags(flags); err != nil {
			if undo := undefine(dom); undo != nil {
				return fmt.Errorf("%w; its configuration remains, because removing it failed: %w", err, undo)
			}
			return err
		}
		return nil
	}))
}

func isThere(c *libvirt.Connect, name string) bool {
	old, err := c.LookupDomainByName(name)
	if err == nil {
		_ = old.Free()
	}
	return err == nil
}

// takenMeanwhile returns guest.ErrExists if creating a guest failed because
// another one of that name was created meanwhile. libvirt's error code does not
// distinguish that from other failures, so the name is looked up again.
func takenMeanwhile(c *libvirt.Connect, op, name string, err error) error {
	if errors.Is(err, libvirt.ERR_OPERATION_FAILED) && isThere(c, name) {
		return &Error{Op: op, Guest: name, Kinds: []error{guest.ErrExists}, Err: err}
	}
	return err
}

// Start creates and starts a guest. If the emulator's pin must be set late,
// Start starts the guest paused, sets the pin, and resumes the guest; if that
// fails it ends the guest.
func (d *Driver) Start(ctx context.Context, g guest.Definition, transient bool) error {
	late := !g.LateEmulatorPin.IsEmpty()
	options := CreateOptions{Persistent: !transient, Paused: late}
	if err := d.Create(ctx, g.Name, g.Text, options); err != nil || !late {
		return err
	}
	err := d.PinEmulatorIn(ctx, g.Name, g.LateEmulatorPin, Live)
	if err == nil {
		err = d.Resume(ctx, g.Name)
	}
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), defaultTime)
		defer cancel()
		err = errors.Join(err, d.Remove(undo, g.Name))
	}
	return err
}

// Remove ends a guest, if it runs, and removes its configuration, if it has
// one.
func (d *Driver) Remove(ctx context.Context, name string) error {
	return d.control(ctx, "removing it", name, func(dom *libvirt.Domain) error {
		persistent, err := dom.IsPersistent()
		if err != nil {
			return err
		}
		active, err := dom.IsActive()
		if err != nil {
			return err
		}
		if active {
			if err := dom.Destroy(); err != nil && !errors.Is(err, libvirt.ERR_OPERATION_INVALID) {
				return err
			}
		}
		if persistent {
			return undefine(dom)
		}
		return nil
	})
}

// Undefine removes the configuration of a guest that does not run. Its NVRAM, the variables of
// its firmware, stays; libvirt gives it to the next guest of that name.
func (d *Driver) Undefine(ctx context.Context, name string) error {
	const op = "removing its configuration"
	return d.control(ctx, op, name, func(dom *libvirt.Domain) error {
		active, err := dom.IsActive()
		if err != nil {
			return err
		}
		if active {
			return &Error{Op: op, Guest: name, Kinds: []error{guest.ErrRefused}, Err: errors.New("it runs")}
		}
		return undefineWith(dom, libvirt.DOMAIN_UNDEFINE_KEEP_NVRAM)
	})
}

// undefine removes a guest's stored configuration with everything that libvirt
// stores with it (saved memory, NVRAM, snapshot records). Disks stay.
func undefine(dom *libvirt.Domain) error {
	return undefineWith(dom, libvirt.DOMAIN_UNDEFINE_NVRAM)
}

func undefineWith(dom *libvirt.Domain, nvram libvirt.DomainUndefineFlagsValues) error {
	err := dom.UndefineFlags(nvram | libvirt.DOMAIN_UNDEFINE_MANAGED_SAVE |
		libvirt.DOMAIN_UNDEFINE_SNAPSHOTS_METADATA | libvirt.DOMAIN_UNDEFINE_CHECKPOINTS_METADATA)
	if errors.Is(err, libvirt.ERR_INVALID_ARG) { // a driver without these flags
		return dom.Undefine()
	}
	return err
}

// Resume lets its vCPUs run. It refuses a guest whose post-copy migration has broken: the guest ran on the
// target after it was paused here, and wrote to its disks there.
func (d *Driver) Resume(ctx context.Context, name string) error {
	return d.control(ctx, "resuming it", name, func(dom *libvirt.Domain) error {
		state, reason, err := dom.GetState()
		if err != nil {
			return err
		}
		if brokenPostCopy(state, reason) {
			return fmt.Errorf("%w: its post-copy migration broke after it ran on the target, so its memory here is "+
				"out of date: 'virsh migrate --postcopy-resume' continues the migration; if the target has lost it, "+
				"end it here with 'virsh destroy'", guest.ErrRefused)
		}
		return dom.Resume()
	})
}

// brokenPostCopy reports whether a guest was paused on the source after the target had let it run.
func brokenPostCopy(state libvirt.DomainState, reason int) bool {
	return state == libvirt.DOMAIN_PAUSED && (reason == int(libvirt.DOMAIN_PAUSED_POSTCOPY) ||
		reason == int(libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED))
}

// Launch starts a guest that has a stored configuration and does not run.
func (d *Driver) Launch(ctx context.Context, name string) error {
	return d.control(ctx, "starting it", name, (*libvirt.Domain).Create)
}

// ShutDown asks a guest to power off, and does not wait for it.
func (d *Driver) ShutDown(ctx context.Context, name string) error {
	return d.control(ctx, "asking it to power off", name, (*libvirt.Domain).Shutdown)
}

// PowerOff ends a guest's run at once; its stored configuration stays. A guest that does not
// run is no error.
func (d *Driver) PowerOff(ctx context.Context, name string) error {
	return d.control(ctx, "ending it", name, func(dom *libvirt.Domain) error {
		active, err := dom.IsActive()
		if err != nil || !active {
			return err
		}
		if err := dom.Destroy(); err != nil && !errors.Is(err, libvirt.ERR_OPERATION_INVALID) {
			return err
		}
		return nil
	})
}
