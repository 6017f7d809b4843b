// Package top shows a host's daemon live in a terminal: its nodes, VMs, moves
// in progress, recommended moves (advice) and alarms, with keys to sort, to
// inspect and to accept a recommended move.
//
// A Model is the whole state of the picture. Update is a function of the model
// and a message, View one of the model; time comes in with the messages.
// Requests to the daemon are commands, which the terminal library runs.
package top

import (
	"context"
	"time"

	"github.com/numavisor/numavisor/internal/status"
)

// Daemon are the view's requests to a host's daemon. Every call ends when its
// context does.
type Daemon interface {
	// Status returns the daemon's current status.
	Status(context.Context) (status.Status, error)
	// Accept makes a recommended move, Cancel cancels a move in progress; id is
	// the move's.
	Accept(ctx context.Context, id string) error
	Cancel(ctx context.Context, id string) error
	// Pause suspends automatic moves for that time, 0 until Resume.
	Pause(ctx context.Context, length time.Duration, why string) error
	Resume(ctx context.Context) error
}
