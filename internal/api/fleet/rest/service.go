// Package rest serves the API of package fleetapi over HTTP: routes, validation, authentication,
// problem documents, the OpenAPI document and a page that shows it. A Service does the work.
package rest

import (
	"context"

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

// Page selects a part of a list.
type Page struct {
	Limit  int
	Cursor string // the last name of the page before; empty: the first page
}

// Service does what the API offers. Errors that users should read are *fleetapi.Problem.
//
//nolint:interfacebloat // one method for each operation of the API
type Service interface {
	// Authenticate returns the user of a token; nil if there is none.
	Authenticate(ctx context.Context, token string) (*fleetapi.User, error)
	Info() fleetapi.ServerInfo
	HostService
	VMService
	PlanService
	AccessService
}

// HostService does the operations on hosts.
type HostService interface {
	Hosts(ctx context.Context, c Call, p Page) (fleetapi.Hosts, error)
	Host(ctx context.Context, c Call, name string) (fleetapi.Host, error)
	Nodes(ctx context.Context, c Call, host string) (fleetapi.Nodes, error)
	Inventory(ctx context.Context, c Call, host string) (inventory.Host, error)
	EditHost(ctx context.Context, c Call, name string, e fleetapi.HostEdit) (fleetapi.Host, error)
	Cordon(ctx context.Context, c Call, name string) (fleetapi.Host, error)
	Uncordon(ctx context.Context, c Call, name string) (fleetapi.Host, error)
	Drain(ctx context.Context, c Call, name string, how fleetapi.HostDrain) (fleetapi.Host, error)
	DeclareDead(ctx context.Context, c Call, name, why string) (fleetapi.Host, error)
	DeclareAlive(ctx context.Context, c Call, name string) (fleetapi.Host, error)
	RemoveHost(ctx context.Context, c Call, name string) error
	CreateJoin(ctx context.Context, c Call, j fleetapi.JoinCreate) (fleetapi.NewJoin, error)
	Alarms(ctx context.Context, c Call) (fleetapi.Alarms, error)
	// Events sends changes until ctx ends or the receiver is too slow, then closes the channel.
	Events(ctx context.Context, c Call) (<-chan fleetapi.Event, error)
}

// VMService does the operations on VMs.
type VMService interface {
	CreateVM(ctx context.Context, c Call, v fleetapi.VMCreate) (fleetapi.VM, error)
	AdoptVM(ctx context.Context, c Call, a fleetapi.VMAdopt) (fleetapi.VM, error)
	VMs(ctx context.Context, c Call, f fleetapi.Filter, p Page) (fleetapi.VMs, error)
	VM(ctx context.Context, c Call, name string) (fleetapi.VM, error)
	Placement(ctx context.Context, c Call, name string) (fleetapi.Placement, error)
	StartVM(ctx context.Context, c Call, name string) (fleetapi.VM, error)
	StopVM(ctx context.Context, c Call, name string) (fleetapi.VM, error)
	BindVM(ctx context.Context, c Call, name string) (fleetapi.VM, error)
	ResizeVM(ctx context.Context, c Call, name string, r fleetapi.VMResize) (fleetapi.VM, error)
	MigrateVM(ctx context.Context, c Call, name string, m fleetapi.VMMigrate) (fleetapi.VM, error)
	DeleteVM(ctx context.Context, c Call, name string) (fleetapi.VM, error)
}

// PlanService does the operations on plans of migrations.
type PlanService interface {
	Plan(ctx context.Context, c Call) (fleetapi.Plan, error)
	Moves(ctx context.Context, c Call, vm string, p Page) (fleetapi.Moves, error)
	History(ctx context.Context, c Call, vm string, p Page) (fleetapi.History, error)
	Headroom(ctx context.Context, c Call, p Page) (fleetapi.Headroom, error)
}

// AccessService does the operations on projects, users and the audit.
type AccessService interface {
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
