// Package top shows a host's daemon live in a terminal: its nodes, VMs, moves
// in progress, advice and alarms, with keys to sort, to inspect and to accept an
// advised move.
//
// A Model is the whole state of the picture. Update is a function of the model
// and a message, View one of the model; time comes in with the messages. What
// has to be asked of the daemon are commands, which the terminal library runs.
package top

import (
	"context"
	"time"

	"github.com/numavisor/numavisor/internal/status"
)

// Daemon is what the view asks of a host's daemon. Every call ends when its
// context does.
type Daemon interface {
	// Status tells the daemon's view now.
	Status(context.Context) (status.Status, error)
	// Accept has an advised move made, Cancel ends a move in progress; id is theirs.
	Accept(ctx context.Context, id string) error
	Cancel(ctx context.Context, id string) error
	// Pause keeps everything where it is for that long, 0 until Resume.
	Pause(ctx context.Context, length time.Duration, why string) error
	Resume(ctx context.Context) error
}
