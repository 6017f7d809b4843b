// Package reconcile decides what a host's daemon does about the VMs of its fleet: desired
// state (fleet.Desired) and inventory in, actions and reported states out.
//
// It is level-triggered: the decision depends on the present states alone, never on which
// messages came before. A lost, repeated or late message changes nothing once the latest
// one has arrived. These rules protect VMs:
//
//   - A VM that the desired state does not name is never touched.
//   - A VM of the same name that the fleet did not create is never changed, unless the
//     fleet adopts it.
//   - A VM whose recorded placement is for another host is not changed: that host may run it.
//   - If a hypervisor cannot be queried, a VM that is not seen is unknown: no action.
//   - A VM that another program removed is not created again until its users change
//     their request: it may run elsewhere. One whose configuration the hypervisor does not
//     store, and that ran when the host ended, is created again after the host's boot.
//   - No second action on a VM begins while one runs.
//
// The nodes of a VM have three values: those that the fleet wants, those that the fleet
// wanted when the daemon last carried that out (Known), and the present ones. The host's
// own balancing may change the present ones; the daemon reports them, and rebinds the VM
// only if the fleet wants other nodes than before.
package reconcile
