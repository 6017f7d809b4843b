package libvirt

import (
	"context"
	"errors"
	"fmt"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
	"libvirt.org/go/libvirt"
)

// Scope selects which of a guest's two descriptions a change is for.
type Scope int

// The scopes.
const (
	Everywhere Scope = iota // all that exist
	Live                    // the running process only
	Config                  // the stored configuration only
)

// impact turns a scope into libvirt's flags for the guest's present state.
func impact(dom *libvirt.Domain, s Scope) (libvirt.DomainModificationImpact, error) {
	switch s {
	case Live:
		return libvirt.DOMAIN_AFFECT_LIVE, nil
	case Config:
		return libvirt.DOMAIN_AFFECT_CONFIG, nil
	case Everywhere:
	}
	active, err := dom.IsActive()
	if err != nil {
		return 0, err
	}
	persistent, err := dom.IsPersistent()
	if err != nil {
		return 0, err
	}
	var flags libvirt.DomainModificationImpact
	if active {
		flags |= libvirt.DOMAIN_AFFECT_LIVE
	}
	if persistent {
		flags |= libvirt.DOMAIN_AFFECT_CONFIG
	}
	return flags, nil
}

// tune runs a changing call with the scope's flags for the guest.
func (d *Driver) tune(
	ctx context.Context, op, name string, s Scope, call func(*libvirt.Domain, libvirt.DomainModificationImpact) error,
) error {
	return d.control(ctx, op, name, func(dom *libvirt.Domain) error {
		flags, err := impact(dom, s)
		if err != nil {
			return err
		}
		return invalidState(dom, flags, call(dom, flags))
	})
}

// invalidState adds the reason to an error that means that the guest's state
// does not allow the change. libvirt has one code for all reasons, and its text
// depends on version and language, so invalidState queries the state.
func invalidState(dom *libvirt.Domain, flags libvirt.DomainModificationImpact, err error) error {
	if !errors.Is(err, libvirt.ERR_OPERATION_INVALID) {
		return err
	}
	if active, unread := dom.IsActive(); flags&libvirt.DOMAIN_AFFECT_LIVE != 0 && unread == nil && !active {
		return fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	if stored, unread := dom.IsPersistent(); flags&libvirt.DOMAIN_AFFECT_CONFIG != 0 && unread == nil && !stored {
		return fmt.Errorf("%w: %w", guest.ErrTransient, err)
	}
	return err
}

// cpuMap is libvirt's form of a CPU set. It refuses an empty set, which would
// leave the thread no CPU at all.
func cpuMap(cpus topology.CPUSet) ([]bool, error) {
	if cpus.IsEmpty() {
		return nil, errors.New("the CPU set is empty")
	}
	ids := cpus.IDs()
	m := make([]bool, ids[len(ids)-1]+1)
	for _, id := range ids {
		m[id] = true
	}
	return m, nil
}

func (d *Driver) pin(
	ctx context.Context, op, name string, s Scope, cpus topology.CPUSet,
	call func(*libvirt.Domain, []bool, libvirt.DomainModificationImpact) error,
) error {
	op = fmt.Sprintf("%s to CPUs %q", op, cpus)
	m, err := cpuMap(cpus)
	if err != nil {
		return fail(op, name, err)
	}
	return d.tune(ctx, op, name, s, func(dom *libvirt.Domain, flags libvirt.DomainModificationImpact) error {
		return call(dom, m, flags)
	})
}

// PinVCPU restricts a vCPU to CPUs, now and at the next start
// (virDomainPinVcpuFlags).
func (d *Driver) PinVCPU(ctx context.Context, name string, v guest.VCPUID, cpus topology.CPUSet) error {
	return d.pin(ctx, fmt.Sprintf("pinning vCPU %d", v), name, Everywhere, cpus,
		func(dom *libvirt.Domain, m []bool, flags libvirt.DomainModificationImpact) error {
			return dom.PinVcpuFlags(uint(v), m, flags)
		})
}

// PinEmulator restricts QEMU's other threads to CPUs, now and at the next start
// (virDomainPinEmulator).
func (d *Driver) PinEmulator(ctx context.Context, name string, cpus topology.CPUSet) error {
	return d.PinEmulatorIn(ctx, name, cpus, Everywhere)
}

// PinEmulatorIn is PinEmulator for one of the guest's descriptions: Live if
// EmulatorPinIsLate says that the configuration must not have the pin.
func (d *Driver) PinEmulatorIn(ctx context.Context, name string, cpus topology.CPUSet, s Scope) error {
	return d.pin(ctx, "pinning the emulator", name, s, cpus,
		func(dom *libvirt.Domain, m []bool, flags libvirt.DomainModificationImpact) error {
			return dom.PinEmulator(m, flags)
		})
}

// PinIOThread restricts an I/O thread to CPUs, now and at the next start
// (virDomainPinIOThread). Ids count from 1.
func (d *Driver) PinIOThread(ctx context.Context, name string, id int, cpus topology.CPUSet) error {
	return d.pin(ctx, fmt.Sprintf("pinning I/O thread %d", id), name, Everywhere, cpus,
		func(dom *libvirt.Domain, m []bool, flags libvirt.DomainModificationImpact) error {
			return dom.PinIOThread(uint(id), m, flags)
		})
}

var numaModes = map[guest.MemoryMode]libvirt.DomainNumatuneMemMode{
	guest.MemoryStrict:      libvirt.DOMAIN_NUMATUNE_MEM_STRICT,
	guest.MemoryPreferred:   libvirt.DOMAIN_NUMATUNE_MEM_PREFERRED,
	guest.MemoryInterleave:  libvirt.DOMAIN_NUMATUNE_MEM_INTERLEAVE,
	guest.MemoryRestrictive: libvirt.DOMAIN_NUMATUNE_MEM_RESTRICTIVE,
}

// SetNUMA sets mode and nodeset of <numatune><memory>
// (virDomainSetNumaParameters). On a running guest libvirt allows it only in
// mode restrictive, for guests that have that mode or no <memory> yet; others
// are guest.ErrRefused. It writes cpuset.mems of every thread group and so
// moves the guest's memory before it returns; it does not report how much it
// moved.
func (d *Driver) SetNUMA(
	ctx context.Context, name string, mode guest.MemoryMode, nodes topology.NodeSet, s Scope,
) error {
	op := fmt.Sprintf("setting numatune %s on nodes %q", mode, nodes)
	m, known := numaModes[mode]
	if !known || nodes.IsEmpty() {
		return fail(op, name,
			errors.New("allowed: mode strict, preferred, interleave or restrictive, and at least one node"))
	}
	return d.tune(ctx, op, name, s, func(dom *libvirt.Domain, flags libvirt.DomainModificationImpact) error {
		return dom.SetNumaParameters(&libvirt.DomainNumaParameters{
			NodesetSet: true, Nodeset: nodes.String(), ModeSet: true, Mode: m,
		}, flags)
	})
}

// TuneLive restricts a running guest to nodes as a whole by mode restrictive.
func (d *Driver) TuneLive(ctx context.Context, name string, nodes topology.NodeSet) error {
	return d.SetNUMA(ctx, name, guest.MemoryRestrictive, nodes, Live)
}

// Record stores the intent in the guest's metadata, running and stored.
func (d *Driver) Record(ctx context.Context, name string, intent Metadata) error {
	const op = "recording its intent"
	text, err := metadataText(intent)
	if err != nil {
		return fail(op, name, err)
	}
	// libvirt adds prefix and namespace by itself (virDomainSetMetadata)
	element := tag{name: metadataName, text: text}.render("")
	return d.tune(ctx, op, name, Everywhere, func(dom *libvirt.Domain, flags libvirt.DomainModificationImpact) error {
		return dom.SetMetadata(libvirt.DOMAIN_METADATA_ELEMENT, element, metadataPrefix, MetadataURI, flags)
	})
}

// Forget removes the intent from the guest's metadata; a guest without one
// stays as it is.
func (d *Driver) Forget(ctx context.Context, name string) error {
	return d.tune(
		ctx,
		"removing its intent",
		name,
		Everywhere,
		func(dom *libvirt.Domain, flags libvirt.DomainModificationImpact) error {
			// without a text the element is removed (virDomainSetMetadata)
			return dom.SetMetadata(libvirt.DOMAIN_METADATA_ELEMENT, "", metadataPrefix, MetadataURI, flags)
		},
	)
}

// Configure binds the guest's stored configuration, for its next start. A
// guest without one is guest.ErrTransient.
func (d *Driver) Configure(ctx context.Context, name string, intent Metadata) error {
	old, err := d.XML(ctx, name, Stored)
	if err != nil {
		return err
	}
	bound, err := Rewrite(old, intent.Placement, intent)
	if err != nil {
		return fail("binding its configuration", name, err)
	}
	return d.Define(ctx, name, bound)
}
