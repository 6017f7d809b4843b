package main

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

// libvirtGuests lists libvirt's VMs. Where its library is not installed, which
// its daemons need too, it is no hypervisor of the host; unless a VM runs that
// it started (as seen from inside a container): that one hides, with others.
type libvirtGuests struct {
	observe.Hypervisor
	processes linux.Root
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
