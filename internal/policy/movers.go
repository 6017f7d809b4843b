package policy

import "cmp"

// Movers is the policy about other programs that move pages on the host or
// change bindings of guests, so that each guest has one owner. It does not
// apply to guests in mode off, or on a host in mode off or advise.
type Movers struct {
	// KernelBalancing is about the kernel's own NUMA balancing
	// (kernel.numa_balancing); default leave: it leaves memory with an explicit
	// policy alone, and brings other pages to the vCPUs that use them, where
	// Numavisor has placed these.
	KernelBalancing Answer `json:"kernel_balancing,omitempty"`
	// KernelCopies lets the daemon enable kernel balancing while it moves VMs for which
	// that is the better mover, if no other VM's memory would be moved; default auto.
	// off: never. It has no effect if KernelBalancing is off, or with Balance.Pace.
	KernelCopies Answer `json:"kernel_copies,omitempty"`
	// Recreate is about moving the memory of a running guest whose hypervisor moves none, by making the guest
	// again on the same host (a live migration to itself): it pauses for a time, and needs its memory twice.
	// Default off: never; operator: when an operator asks for it (bind --recreate).
	Recreate Answer `json:"recreate,omitempty"`
	// Numad is about a running numad; default exclude: the daemon asks it to leave
	// alone (numad -x) the guests that Numavisor may move.
	Numad Answer `json:"numad,omitempty"`
	// KSM is about merging pages of different nodes; default leave: to stop it,
	// all pages must be unmerged, which takes the memory that merging saved.
	KSM Answer `json:"ksm,omitempty"`
	// Changes is the answer to another program or user that changes the binding of
	// a managed guest; default repair: the daemon binds the guest again, once. If
	// the binding changes again within the hour, the daemon leaves the change and
	// reports it.
	Changes Answer `json:"changes,omitempty"`
}

// Answer is the daemon's reaction to a competitor.
type Answer string

// Answers. Every competitor is reported, whatever the answer.
const (
	AnswerLeave   Answer = "leave"   // only report it
	AnswerOff     Answer = "off"     // switch it off while the daemon runs and its policy says so
	AnswerExclude Answer = "exclude" // have it leave managed guests alone
	AnswerRepair  Answer = "repair"  // undo what it did
	AnswerWithin  Answer = "within"  // let it act within nodes only
	AnswerAuto    Answer = "auto"    // use it where that is better

	AnswerOperator Answer = "operator" // use it when an operator asks for it
)

// Words returns the answers. Each field takes some of them.
func (Answer) Words() []string {
	return []string{string(AnswerLeave), string(AnswerOff), string(AnswerExclude), string(AnswerRepair),
		string(AnswerWithin), string(AnswerAuto), string(AnswerOperator)}
}

func (m Movers) withDefaults() Movers {
	m.KernelBalancing = cmp.Or(m.KernelBalancing, AnswerLeave)
	m.KernelCopies = cmp.Or(m.KernelCopies, AnswerAuto)
	m.Recreate = cmp.Or(m.Recreate, AnswerOff)
	m.Numad = cmp.Or(m.Numad, AnswerExclude)
	m.KSM = cmp.Or(m.KSM, AnswerLeave)
	m.Changes = cmp.Or(m.Changes, AnswerRepair)
	return m
}

func (m Movers) check(c *checker) {
	oneOf(c, "movers.kernel_balancing", m.KernelBalancing, AnswerLeave, AnswerOff)
	oneOf(c, "movers.kernel_copies", m.KernelCopies, AnswerAuto, AnswerOff)
	oneOf(c, "movers.recreate", m.Recreate, AnswerOff, AnswerOperator)
	oneOf(c, "movers.numad", m.Numad, AnswerLeave, AnswerExclude)
	oneOf(c, "movers.ksm", m.KSM, AnswerLeave, AnswerWithin)
	oneOf(c, "movers.changes", m.Changes, AnswerLeave, AnswerRepair)
}
