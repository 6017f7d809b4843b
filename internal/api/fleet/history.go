package fleetapi

import "time"

// HistoryEntry is something that was done with a VM or a host of the fleet.
type HistoryEntry struct {
	ID        string    `json:"id"`
	At        time.Time `json:"at"`
	By        string    `json:"by"` // a user, or "server"
	Operation string    `json:"operation"`
	VM        string    `json:"vm,omitempty"`
	Project   string    `json:"project,omitempty"` // of the VM
	Host      string    `json:"host,omitempty"`    // that the operation is about
	What      string    `json:"what"`              // in words: what has changed
}

// History is a page of what was done, the newest first.
type History struct {
	Entries []HistoryEntry `json:"entries"`
	// Next is the cursor of the next page; empty: this is the last one.
	Next string `json:"next,omitempty"`
}
