// Package rest serves the API of package fleetapi over HTTP: routes, validation, authentication,
// problem documents, the OpenAPI document and a page that shows it. A Service does the work.
package rest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/inventory"
)

// Call is who makes a request, and how.
type Call struct {
	User      *fleetapi.User // nil: operations that need no role
	Operation fleetapi.Operation
	DryRun    bool
	Revision  int64  // of If-Match; 0: any
	Key       string // of Idempotency-Key
}

// Allow returns a problem unless the user may do the operation in a project. A project that
// the user does not belong to is reported as what is missing, so that names stay hidden.
func (c *Call) Allow(project, what string) error {
	if c.Operation.Allows(c.User, project) {
		return nil
	}
	return fleetapi.NewProblem(fleetapi.ProblemNotFound, what)
}

// CheckRevision refuses a change that was meant for another revision.
func (c *Call) CheckRevision(revision int64) error {
	if c.Revision != 0 && c.Revision != revision {
		return fleetapi.NewProblem(fleetapi.ProblemChanged, fmt.Sprintf(
			"If-Match names revision %d, the present one is %d: read it again", c.Revision, revision))
	}
	return nil
}

// Repeat identifies a request that has an Idempotency-Key: by its user, operation and key, and by a hash of its body.
// Both are empty without a key, and for a dry run.
func (c *Call) Repeat(body any) (key, hash string, err error) {
	if c.Key == "" || c.DryRun {
		return "", "", nil
	}
	data, err := json.Marshal(body)
	if err != nil {
		return "", "", fmt.Errorf("encoding the request: %w", err)
	}
	of := sha256.Sum256([]byte(c.User.Name + "\x00" + c.Operation.ID + "\x00" + c.Key))
	sum := sha256.Sum256(data)
	return hex.EncodeToString(of[:]), hex.EncodeToString(sum[:]), nil
}

// ErrOtherRequest is the problem of a key that was used for another request.
func ErrOtherRequest() *fleetapi.Problem {
	return fleetapi.NewProblem(fleetapi.ProblemInvalid, "Idempotency-Key: was used for another request; use a new key")
}

// Page selects a part of a list.
type Page struct {
	Limit  int
	Cursor string // the last name of the page before; empty: the first page
}

// defaultLimit is how many records a page has unless its user asks for another number.
const defaultLimit = 100

// WithDefaults returns the page with a limit.
func (p Page) WithDefaults() Page {
	if p.Limit <= 0 {
		p.Limit = defaultLimit
	}
	return p
}

// Of returns the part of sorted names that the page selects, and the next cursor.
func (p Page) Of(names []string, wanted func(string) bool) (out []string, next string) {
	p = p.WithDefaults()
	i, found := slices.BinarySearch(names, p.Cursor)
	if found && p.Cursor != "" {
		i++
	}
	for _, name := range names[i:] {
		if !wanted(name) {
			continue
		}
		if len(out) == p.Limit {
			return out, out[p.Limit-1]
		}
		out = append(out, name)
	}
	return out, ""
}

// Service does what the API of a fleet's server offers. Errors that users should read are *fleetapi.Problem.
type Service interface {
	HostService
	FleetService
}

// HostService does the operations that the daemon of one host does as well.
//
//nolint:interfacebloat // one method for each operation of the API
type HostService interface {
	// Authenticate returns the user of a token; nil if there is none. A request without a token has an empty one.
	Authenticate(ctx context.Context, token string) (*fleetapi.User, error)
	Info() fleetapi.ServerInfo

	Hosts(ctx context.Context, c Call, p Page) (fleetapi.Hosts, error)
	Host(ctx context.Context, c Call, name string) (fleetapi.Host, error)
	Nodes(ctx context.Context, c Call, host string) (fleetapi.Nodes, error)
	Inventory(ctx context.Context, c Call, host string) (inventory.Host, error)
	Alarms(ctx context.Context, c Call) (fleetapi.Alarms, error)
	// Events sends changes until ctx ends or the receiver is too slow, then closes the channel.
	Events(ctx context.Context, c Call) (<-chan fleetapi.Event, error)

	CreateVM(ctx context.Context, c Call, v fleetapi.VMCreate) (fleetapi.VM, error)
	AdoptVM(ctx context.Context, c Call, a fleetapi.VMAdopt) (fleetapi.VM, error)
	VMs(ctx context.Context, c Call, f fleetapi.Filter, p Page) (fleetapi.VMs, error)
	VM(ctx context.Context, c Call, name string) (fleetapi.VM, error)
	Placement(ctx context.Context, c Call, name string) (fleetapi.Placement, error)
	StartVM(ctx context.Context, c Call, name string) (fleetapi.VM, error)
	StopVM(ctx context.Context, c Call, name string) (fleetapi.VM, error)
	BindVM(ctx context.Context, c Call, name string) (fleetapi.VM, error)
	ResizeVM(ctx context.Context, c Call, name string, r fleetapi.VMResize) (fleetapi.VM, error)
	DeleteVM(ctx context.Context, c Call, name string) (fleetapi.VM, error)

	Plan(ctx context.Context, c Call) (fleetapi.Plan, error)
	Moves(ctx context.Context, c Call, vm string, p Page) (fleetapi.Moves, error)
	History(ctx context.Context, c Call, vm string, p Page) (fleetapi.History, error)
}

// FleetService does the operations that need a fleet: Operation.Fleet is true for each.
//
//nolint:interfacebloat // one method for each operation of the API
type FleetService interface {
	EditHost(ctx context.Context, c Call, name string, e fleetapi.HostEdit) (fleetapi.Host, error)
	Cordon(ctx context.Context, c Call, name string) (fleetapi.Host, error)
	Uncordon(ctx context.Context, c Call, name string) (fleetapi.Host, error)
	Drain(ctx context.Context, c Call, name string, how fleetapi.HostDrain) (fleetapi.Host, error)
	DeclareDead(ctx context.Context, c Call, name, why string) (fleetapi.Host, error)
	DeclareAlive(ctx context.Context, c Call, name string) (fleetapi.Host, error)
	RemoveHost(ctx context.Context, c Call, name string) error
	CreateJoin(ctx context.Context, c Call, j fleetapi.JoinCreate) (fleetapi.NewJoin, error)

	MigrateVM(ctx context.Context, c Call, name string, m fleetapi.VMMigrate) (fleetapi.VM, error)
	Headroom(ctx context.Context, c Call, p Page) (fleetapi.Headroom, error)

	Projects(ctx context.Context, c Call) (fleetapi.Projects, error)
	Project(ctx context.Context, c Call, name string) (fleetapi.Project, error)
	PutProject(ctx context.Context, c Call, name string, e fleetapi.ProjectEdit) (fleetapi.Project, error)
	DeleteProject(ctx context.Context, c Call, name string) error
	Users(ctx context.Context, c Call) (fleetapi.Users, error)
	User(ctx context.Context, c Call, name string) (fleetapi.User, error)
	PutUser(ctx context.Context, c Call, name string, e fleetapi.UserEdit) (fleetapi.User, error)
	DeleteUser(ctx context.Context, c Call, name string) error
	CreateToken(ctx context.Context, c Call, user string, t fleetapi.TokenCreate) (fleetapi.NewToken, error)
	DeleteToken(ctx context.Context, c Call, user, id string) error
	Audit(ctx context.Context, c Call, p Page) (fleetapi.Audit, error)
}
