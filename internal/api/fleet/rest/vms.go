package rest

import (
	"context"
	"net/http"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
)

// OnVM names a VM in the path.
type OnVM struct {
	VM string `path:"vm" maxLength:"240"`
}

// ListVMs is a filter and a page.
type ListVMs struct {
	Paging
	Project string           `query:"project"`
	Host    string           `query:"host"`
	State   fleetapi.VMState `query:"state" enum:"pending,working,running,stopped,migrating,deleting,failed,unknown"`
	Label   string           `query:"label" doc:"KEY or KEY=VALUE"`
}

func (r *routes) vms() { //nolint:funlen // a table of operations
	s := r.service
	vm := func(v fleetapi.VM, err error) (*Tagged[fleetapi.VM], error) { return tagged(v, v.Revision, err) }
	made := func(c *Call, v fleetapi.VM, err error) (*Made[fleetapi.VM], error) {
		if err != nil {
			return nil, err
		}
		status := http.StatusCreated
		if c.DryRun {
			status = http.StatusOK
		}
		return &Made[fleetapi.VM]{status, etag(v.Revision), v}, nil
	}
	add(r, "create-vm", func(ctx context.Context, c Call, in *struct {
		Creation
		Body fleetapi.VMCreate
	},
	) (*Made[fleetapi.VM], error) {
		v, err := s.CreateVM(ctx, c, in.Body)
		return made(&c, v, err)
	})
	add(r, "adopt-vm", func(ctx context.Context, c Call, in *struct {
		Creation
		Body fleetapi.VMAdopt
	},
	) (*Made[fleetapi.VM], error) {
		v, err := s.AdoptVM(ctx, c, in.Body)
		return made(&c, v, err)
	})
	for _, path := range []string{"/v1/vms", "/v1/adopt"} { // a dry run answers 200
		op := r.api.OpenAPI().Paths[path].Post
		op.Responses["200"] = op.Responses["201"]
	}
	add(r, "list-vms", func(ctx context.Context, c Call, in *ListVMs) (*Plain[fleetapi.VMs], error) {
		f := fleetapi.Filter{Project: in.Project, Host: in.Host, State: in.State, Label: in.Label}
		return plain(s.VMs(ctx, c, f, in.page()))
	})
	add(r, "get-vm", func(ctx context.Context, c Call, in *OnVM) (*Tagged[fleetapi.VM], error) {
		return vm(s.VM(ctx, c, in.VM))
	})
	add(r, "get-placement", func(ctx context.Context, c Call, in *OnVM) (*Plain[fleetapi.Placement], error) {
		return plain(s.Placement(ctx, c, in.VM))
	})
	for id, do := range map[string]func(context.Context, Call, string) (fleetapi.VM, error){
		"start-vm": s.StartVM, "stop-vm": s.StopVM, "bind-vm": s.BindVM, "delete-vm": s.DeleteVM,
	} {
		add(r, id, func(ctx context.Context, c Call, in *struct {
			OnVM
			Edit
		},
		) (*Tagged[fleetapi.VM], error) {
			return vm(do(ctx, c, in.VM))
		})
	}
	add(r, "resize-vm", func(ctx context.Context, c Call, in *struct {
		OnVM
		Edit
		Body fleetapi.VMResize
	},
	) (*Tagged[fleetapi.VM], error) {
		return vm(s.ResizeVM(ctx, c, in.VM, in.Body))
	})
	add(r, "migrate-vm", func(ctx context.Context, c Call, in *struct {
		OnVM
		Edit
		Body *fleetapi.VMMigrate `required:"false"`
	},
	) (*Tagged[fleetapi.VM], error) {
		m := fleetapi.VMMigrate{}
		if in.Body != nil {
			m = *in.Body
		}
		return vm(s.MigrateVM(ctx, c, in.VM, m))
	})
}
