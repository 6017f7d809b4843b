// Package migrate carries out one host's part of the live migration of a VM between two
// hosts. The fleet's record of the VM (fleet.Migration) is all that the two hosts have in
// common; the copy itself is libvirt's, peer to peer.
//
// Each part is a state machine. Its beginning and its end are in the journal of its host;
// between them, the hypervisor of the host is asked what is true (guest.Presence), never
// the result of a call:
//
//	target                       hypervisor   next
//	(none)                       absent       claims the room, enlarges pools: prepared; or refused
//	prepared                     absent       waits; gives the room back if the record says so
//	prepared                     suspended    waits: libvirt removes an arriving VM if the source's
//	                                          connection breaks
//	prepared                     runs         binds what is not in place, verifies: arrived
//
//	source                       hypervisor   next
//	(none), target is ready      runs         claims the VM, has it copied
//	leaving                      departing    waits; aborts if the record says so
//	leaving                      runs         it failed or was aborted: stays
//	leaving                      absent       gone
//	leaving                      suspended    undecided: all memory is copied, and only the
//	                                          target knows whether the VM runs there
//
// The record decides an undecided VM: it names another host only after the target has
// said arrived, and has no migration only after the target has said given-back. Then the source removes
// its paused copy, or lets it run again. A copy that runs is never removed.
//
// Every step is safe against kill -9: a claim ends with its process, libvirt continues the
// copy without it, and Act and Recover begin by asking. Calling Act again changes nothing.
//
// Files: migrate.go chooses the step, target.go and source.go carry out the two parts,
// conclude.go ends parts whose migration the record no longer has, journal.go records.
package migrate
