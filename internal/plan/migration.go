package plan

import (
	"time"

	"github.com/numavisor/numavisor/internal/guest"
)

// Migration is one host's part in the live migration of a guest between two hosts.
type Migration struct {
	Guest string    `json:"guest"`
	Began time.Time `json:"began"` // identifies the migration on both hosts
	// Created is when the VM was created in the fleet: another VM may get its name later. Zero: not known.
	Created time.Time `json:"created,omitzero"`
	Leave   bool      `json:"leave"` // the guest leaves this host; otherwise it comes
	// Peer names the other host.
	Peer string `json:"peer"`
	// URI is by which the source's hypervisor reaches the target's; on the target, empty.
	URI string `json:"uri,omitempty"`
	// Intent is for the target.
	Intent guest.Intent `json:"intent"`
}
