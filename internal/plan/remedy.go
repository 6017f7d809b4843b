package plan

// Remedy is one change of the host or of a guest that a program can make: a fix
// that the doctor proposes, or the daemon's answer to a competitor. It is a
// value; operate.Fix makes the change.
type Remedy struct {
	Kind  RemedyKind `json:"kind"`
	Guest string     `json:"guest,omitempty"` // for BindGuest and ExcludeFromNumad
	PID   int        `json:"pid,omitempty"`   // process to exclude, for ExcludeFromNumad
	Path  string     `json:"path,omitempty"`  // path of the setting, below /proc/sys or /sys
	// From is the value that the decision was based on. If the setting has another
	// value by then, it is not changed. Empty: any value.
	From  string `json:"from,omitempty"`
	Value string `json:"value,omitempty"` // the value to write into Path
	Why   string `json:"why,omitempty"`
}

// RemedyKind is the kind of a remedy.
type RemedyKind string

// Kinds of remedies.
const (
	BindGuest    RemedyKind = "bind-guest"           // as 'numavisor bind GUEST' does
	WriteSetting RemedyKind = "write-kernel-setting" // Value into Path
	// RestoreSetting writes the Value that Path had before WriteSetting changed it.
	RestoreSetting RemedyKind = "restore-kernel-setting"
	// KSMWithinNodes stops KSM, splits the merged pages (2 into /sys/kernel/mm/ksm/run;
	// the kernel refuses the change while anything is merged), writes 0 into
	// merge_across_nodes and starts it again.
	KSMWithinNodes   RemedyKind = "ksm-within-nodes"
	ExcludeFromNumad RemedyKind = "exclude-from-numad" // numad -x PID
)

// Kernel settings that remedies change by name.
const (
	NUMABalancingPath  = "/proc/sys/kernel/numa_balancing"
	KSMAcrossNodesPath = "/sys/kernel/mm/ksm/merge_across_nodes"
)
