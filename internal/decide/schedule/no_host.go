package schedule

import (
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/text"
)

// NoHostError is the error for a VM that no host takes.
type NoHostError struct {
	VM       string     `json:"vm"`
	Excluded []Excluded `json:"excluded"` // hosts by reason
	// Refused are hosts that would have room by their summary, and whose nodes cannot be
	// divided so.
	Refused []Next `json:"refused,omitempty"`
	// Unproven says that more hosts had room by their summary than were tried.
	Unproven bool `json:"unproven,omitempty"`
}

// Error gives the reasons in one line, the most frequent first.
func (e *NoHostError) Error() string {
	var parts []string
	for _, x := range e.Excluded {
		parts = append(parts, fmt.Sprintf("%s: %s", text.Count(x.Hosts, "host", "hosts"), x.Reason))
	}
	if n := len(e.Refused); n > 0 {
		parts = append(parts, fmt.Sprintf("%s: enough in sum, but not on the nodes (%s: %s)",
			text.Count(n, "host", "hosts"), e.Refused[0].Host, e.Refused[0].Refused))
	}
	if e.Unproven {
		parts = append(parts, fmt.Sprintf("the other hosts were not tried after %d refusals", tries))
	}
	if len(parts) == 0 {
		parts = []string{"the fleet has no hosts"}
	}
	return fmt.Sprintf("no host for VM %s: %s", e.VM, strings.Join(parts, "; "))
}
