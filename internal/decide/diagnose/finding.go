package diagnose

import (
	"slices"

	"github.com/numavisor/numavisor/internal/plan"
)

// Finding is one problem, or a fact worth knowing.
type Finding struct {
	Rule     string   `json:"rule"` // kebab-case, stable
	Severity Severity `json:"severity"`
	Object   string   `json:"object"`   // "guest web1", "node 3", "host"
	Evidence []string `json:"evidence"` // figures, each with its source
	Effect   string   `json:"effect"`
	Fix      string   `json:"fix"`
	Command  string   `json:"command,omitempty"` // carries out the fix or its first step
	// Safe says that Action may be carried out without confirmation while guests
	// run: it loses nothing, can be undone, and changes the host or a managed guest.
	Safe   bool         `json:"safe"`
	Action *plan.Remedy `json:"action,omitempty"` // nil: Numavisor cannot carry out the fix
}

// Severity is how much a finding matters.
type Severity string

// Severities. An error makes guests fail or be killed; a warning slows them down.
const (
	Info    Severity = "info"
	Warning Severity = "warning"
	Error   Severity = "error"
)

func (s Severity) rank() int { return slices.Index([]Severity{Error, Warning, Info}, s) }
