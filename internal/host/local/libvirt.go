package local

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/host/libvirt"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/inventory"
)

// libvirtGuests lists libvirt's VMs. Without libvirt's library, which its
// daemons need too, libvirt is not installed on this host and hides no VMs. An
// exception is a host where a VM runs that libvirt started: there the program
// runs in a container without the library, and libvirt's VMs are hidden.
type libvirtGuests struct {
	observe.Hypervisor
	processes *linux.Arguments
}

func (l libvirtGuests) Guests(ctx context.Context) ([]inventory.Guest, error) {
	guests, err := l.Hypervisor.Guests(ctx)
	if !errors.Is(err, libvirt.ErrNoLibrary) {
		return guests, err
	}
	running, _, unread := l.processes.QEMUs()
	if unread != nil || slices.ContainsFunc(running, func(q linux.QEMU) bool { return q.Libvirt }) {
		return guests, err
	}
	return guests, fmt.Errorf("%w: %w", observe.ErrNotInstalled, err)
}
