// Package hostapi is the protocol between a host's daemon and its clients: JSON
// over HTTP on a Unix socket. It has the routes, the wire types, the handler
// that a daemon serves, and the client that commands use. It imports value
// types only: no daemon, no driver.
//
//	GET  /v1/status               status.Status
//	GET  /v1/inventory            inventory.Host, with the loads that the next plan uses
//	GET  /v1/series/{kind}/{name} history.Series of "guest" NAME or "node" ID
//	POST /v1/accept/{id}          make a recommended move
//	POST /v1/cancel/{id}          roll back a running move, or drop a queued one
//	POST /v1/pause                PauseOrder
//	POST /v1/resume
//
// A request that succeeds is answered with status 200, and with null if it has
// no result. One that fails is answered with {"error":{"message":"..."}} and
// the status of its Error: 400 malformed, 404 unknown name or id, 409 conflict
// with the daemon's state, 503 the daemon is starting or stopping, else 500.
package hostapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/numavisor/numavisor/internal/history"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/status"
)

// DefaultSocket is the path of the daemon's socket unless another is configured.
const DefaultSocket = "/run/numavisor/daemon.sock"

// Daemon is what the protocol offers. A daemon implements it, and Client
// implements it by asking a daemon. Errors of type *Error carry the status of
// the answer.
type Daemon interface {
	// Status returns the daemon's current status.
	Status(ctx context.Context) (status.Status, error)
	// Inventory returns the host as the next plan uses it: as last observed,
	// with the latest loads of guests and nodes.
	Inventory(ctx context.Context) (inventory.Host, error)
	// Series returns the recorded history of "guest" NAME or "node" ID.
	Series(ctx context.Context, kind, name string) (history.Series, error)
	// Accept makes the recommended move with this id, regardless of mode, pause
	// and windows.
	Accept(ctx context.Context, id string) error
	// Cancel rolls back the running move with this id, or drops it if it is queued.
	Cancel(ctx context.Context, id string) error
	// Pause suspends automatic moves for a time; 0: until Resume.
	Pause(ctx context.Context, length time.Duration, why string) error
	// Resume ends a pause.
	Resume(ctx context.Context) error
}

// PauseOrder is the body of POST /v1/pause.
type PauseOrder struct {
	For time.Duration `json:"for_ns,omitempty"` // 0: until resumed
	Why string        `json:"why,omitempty"`
}

// Validate returns an error if the order cannot be carried out.
func (o PauseOrder) Validate() error {
	if o.For < 0 {
		return fmt.Errorf(
			"pausing for %v: the length of a pause must be positive, or 0 for a pause until it is resumed",
			o.For)
	}
	return nil
}

// Error is a request that failed, with the HTTP status of its answer.
type Error struct {
	Status int
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// statusOf returns the HTTP status that answers an error.
func statusOf(err error) int {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status
	}
	return http.StatusInternalServerError
}

// document is the body of an answer to a request that failed.
type document struct {
	Error message `json:"error"`
}

type message struct {
	Message string `json:"message"`
}
