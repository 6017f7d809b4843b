package fake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Name is the hypervisor's name in inventories.
func (h *Host) Name() guest.Hypervisor { return guest.LibvirtQEMU }

// Guests lists all guests by name. It lists guests whose intent is unreadable
// without it, and names them in the error.
func (h *Host) Guests(ctx context.Context) (guests []inventory.Guest, err error) {
	var unread []error
	err = h.call("Guests", func() error {
		for _, name := range slices.Sorted(maps.Keys(h.domains)) {
			guests = append(guests, h.seenGuest(name))
			if h.domains[name].garbled {
				unread = append(unread, fmt.Errorf("guest %s: reading its intent: it is garbled", name))
			}
		}
		return ctx.Err()
	})
	return guests, errors.Join(append(unread, err)...)
}

// tune runs a call on a guest that must exist, while the context lasts.
func (h *Host) tune(ctx context.Context, method, name string, do func(*domain) error) error {
	return h.call(method, func() error {
		d, err := h.domain(name)
		if err = errors.Join(ctx.Err(), err); err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		return do(d)
	})
}

// pinning is a pin of one kind of thread.
type pinning struct {
	has   func(inventory.Config) bool // whether a guest has the thread
	write func(*inventory.Config)
	which func(inventory.Thread) bool
}

// pin writes a pin into the guest's definitions and onto its threads.
func (h *Host) pin(ctx context.Context, method, name string, cpus topology.CPUSet, pin pinning) error {
	return h.tune(ctx, method, name, func(d *domain) error {
		if !pin.has(d.definitions()[0].Config) {
			return fmt.Errorf("%s of guest %s: it has no such thread: %w", method, name, guest.ErrRefused)
		}
		if cpus.IsEmpty() || !cpus.SubsetOf(h.topology.CPUSet()) {
			return fmt.Errorf("%s of guest %s to CPUs %q: not all of these exist", method, name, cpus)
		}
		for _, definition := range d.definitions() {
			pin.write(&definition.Config)
		}
		if d.process != nil {
			d.process.pin(pin.which, cpus)
		}
		return nil
	})
}

// Pins are written into a copy: definitions share unchanged parts.
func pinVCPU(c *inventory.Config, v guest.VCPUID, cpus topology.CPUSet) {
	if c.Pins = maps.Clone(c.Pins); c.Pins == nil {
		c.Pins = map[guest.VCPUID]topology.CPUSet{}
	}
	c.Pins[v] = cpus
}

func pinIOThread(c *inventory.Config, id int, cpus topology.CPUSet) {
	if c.IOThreadPins = maps.Clone(c.IOThreadPins); c.IOThreadPins == nil {
		c.IOThreadPins = map[int]topology.CPUSet{}
	}
	c.IOThreadPins[id] = cpus
}

// PinVCPU restricts a vCPU to CPUs, now and at the next start.
func (h *Host) PinVCPU(ctx context.Context, name string, v guest.VCPUID, cpus topology.CPUSet) error {
	return h.pin(ctx, "PinVCPU", name, cpus, pinning{
		has:   func(c inventory.Config) bool { return v >= 0 && int(v) < c.VCPUs },
		write: func(c *inventory.Config) { pinVCPU(c, v, cpus) },
		which: func(t inventory.Thread) bool { return t.VCPU != nil && *t.VCPU == v },
	})
}

// PinEmulator restricts the program's other threads to CPUs.
func (h *Host) PinEmulator(ctx context.Context, name string, cpus topology.CPUSet) error {
	return h.pin(ctx, "PinEmulator", name, cpus, pinning{
		has:   func(inventory.Config) bool { return true },
		write: func(c *inventory.Config) { c.EmulatorPin = cpus },
		which: func(t inventory.Thread) bool { return t.Role == inventory.RoleEmulator },
	})
}

// PinIOThread restricts an I/O thread to CPUs. Ids count from 1.
func (h *Host) PinIOThread(ctx context.Context, name string, id int, cpus topology.CPUSet) error {
	return h.pin(ctx, "PinIOThread", name, cpus, pinning{
		has:   func(c inventory.Config) bool { return id >= 1 && id <= c.IOThreads },
		write: func(c *inventory.Config) { pinIOThread(c, id, cpus) },
		which: func(t inventory.Thread) bool { return t.Name == fmt.Sprintf("IO iothread%d", id) },
	})
}

// TuneLive restricts a running guest to nodes by mode restrictive. It refuses a
// guest that was started in another mode.
func (h *Host) TuneLive(ctx context.Context, name string, nodes topology.NodeSet) error {
	return h.tune(ctx, "TuneLive", name, func(d *domain) error {
		if d.process == nil {
			return fmt.Errorf("guest %s is not running: %w", name, guest.ErrRefused)
		}
		tune := d.live.Config.NUMATune
		if tune != nil && tune.Mode != string(guest.MemoryRestrictive) {
			return fmt.Errorf("guest %s: change of nodeset for running domain requires restrictive numa mode: %w", name,
				guest.ErrRefused)
		}
		if err := h.setMems(d.process, nodes); err != nil {
			return err
		}
		d.live.Config.NUMATune = &inventory.NUMATune{Mode: string(guest.MemoryRestrictive), Nodes: nodes}
		return nil
	})
}

// Record stores the intent with the guest, running and stored.
func (h *Host) Record(ctx context.Context, name string, intent guest.Intent) error {
	return h.tune(ctx, "Record", name, func(d *domain) error {
		d.garbled = false
		for _, definition := range d.definitions() {
			stored := intent
			definition.Intent = &stored
		}
		return nil
	})
}

// Forget removes the intent from the guest, running and stored.
func (h *Host) Forget(ctx context.Context, name string) error {
	return h.tune(ctx, "Forget", name, func(d *domain) error {
		d.garbled = false
		for _, definition := range d.definitions() {
			definition.Intent = nil
		}
		return nil
	})
}

// Configure binds the stored configuration, for the next start.
func (h *Host) Configure(ctx context.Context, name string, intent guest.Intent) error {
	return h.tune(ctx, "Configure", name, func(d *domain) error {
		if d.stored == nil {
			return fmt.Errorf("guest %s: %w", name, guest.ErrTransient)
		}
		bound := d.stored.bound(intent)
		d.stored = &bound
		return nil
	})
}

// StoredBinding returns the part of the stored configuration that Configure and
// the pins change, without the intent.
func (h *Host) StoredBinding(ctx context.Context, name string) (binding string, err error) {
	err = h.tune(ctx, "StoredBinding", name, func(d *domain) error {
		if d.stored == nil {
			return fmt.Errorf("guest %s: %w", name, guest.ErrTransient)
		}
		text, err := json.Marshal(d.stored.Config)
		binding = string(text)
		return err
	})
	return binding, err
}

// RestoreBinding writes a result of StoredBinding back.
func (h *Host) RestoreBinding(ctx context.Context, name, former string) error {
	return h.tune(ctx, "RestoreBinding", name, func(d *domain) error {
		if d.stored == nil {
			return fmt.Errorf("guest %s: %w", name, guest.ErrTransient)
		}
		var c inventory.Config
		if err := json.Unmarshal([]byte(former), &c); err != nil {
			return fmt.Errorf("restoring the binding of guest %s: %w", name, err)
		}
		d.stored.Config = c
		return nil
	})
}

// Start defines a guest (unless it is transient) and starts it; if it does not
// start, Start removes its definition.
func (h *Host) Start(ctx context.Context, definition guest.Definition, transient bool) error {
	return h.call("Start", func() error {
		d, err := parseDefinition(definition.Text)
		if err = errors.Join(ctx.Err(), err); err != nil {
			return fmt.Errorf("starting a guest: %w", err)
		}
		return h.start(d, transient)
	})
}

// Remove ends a guest and removes its configuration.
func (h *Host) Remove(ctx context.Context, name string) error {
	return h.tune(ctx, "Remove", name, func(*domain) error {
		h.vanish(name)
		delete(h.domains, name)
		return nil
	})
}

// Undefine removes the configuration of a guest that does not run.
func (h *Host) Undefine(ctx context.Context, name string) error {
	return h.tune(ctx, "Undefine", name, func(d *domain) error {
		if d.process != nil {
			return fmt.Errorf("removing the configuration of guest %s: it runs: %w", name, guest.ErrRefused)
		}
		delete(h.domains, name)
		return nil
	})
}

// Resize gives the stored configuration of a guest that does not run another size.
func (h *Host) Resize(ctx context.Context, name string, intent guest.Intent) error {
	return h.tune(ctx, "Resize", name, func(d *domain) error {
		if d.stored == nil {
			return fmt.Errorf("guest %s: %w", name, guest.ErrTransient)
		}
		resized := Define(intent.Spec, intent.Placement)
		resized.Intent, resized.Config.Devices = &intent, d.stored.Config.Devices
		d.stored = &resized
		return nil
	})
}

// Launch starts a guest that has a stored configuration.
func (h *Host) Launch(ctx context.Context, name string) error {
	return h.tune(ctx, "Launch", name, func(d *domain) error {
		if d.process != nil || d.stored == nil {
			return fmt.Errorf("starting guest %s: it runs, or has no stored configuration: %w", name, guest.ErrRefused)
		}
		p, err := h.launch(*d.stored, h.nextPID())
		if err == nil {
			live := *d.stored
			d.live, d.process = &live, p
		}
		return err
	})
}

// ShutDown powers a guest off, unless it is deaf (Deafen).
func (h *Host) ShutDown(ctx context.Context, name string) error {
	return h.tune(ctx, "ShutDown", name, func(d *domain) error {
		if !d.deaf {
			h.vanish(name)
		}
		return nil
	})
}

// PowerOff ends a guest's run.
func (h *Host) PowerOff(ctx context.Context, name string) error {
	return h.tune(ctx, "PowerOff", name, func(*domain) error {
		h.vanish(name)
		return nil
	})
}
