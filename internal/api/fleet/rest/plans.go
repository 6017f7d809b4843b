package rest

import (
	"context"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
)

func (r *routes) plans() {
	s := r.service
	add(r, "get-plan", func(ctx context.Context, c Call, _ *noInput) (*Plain[fleetapi.Plan], error) {
		return plain(s.Plan(ctx, c))
	})
	add(r, "list-moves", func(ctx context.Context, c Call, in *struct {
		Paging
		VM string `query:"vm" maxLength:"240"`
	},
	) (*Plain[fleetapi.Moves], error) {
		return plain(s.Moves(ctx, c, in.VM, in.page()))
	})
	add(r, "list-history", func(ctx context.Context, c Call, in *struct {
		Paging
		VM string `query:"vm" maxLength:"240"`
	},
	) (*Plain[fleetapi.History], error) {
		return plain(s.History(ctx, c, in.VM, in.page()))
	})
	add(r, "get-headroom", func(ctx context.Context, c Call, in *struct {
		Limit  int    `query:"limit" minimum:"1" maximum:"100" default:"20" doc:"hosts; each may take a second"`
		Cursor string `query:"cursor" maxLength:"300" doc:"next of the page before"`
	},
	) (*Plain[fleetapi.Headroom], error) {
		return plain(s.Headroom(ctx, c, Page{in.Limit, in.Cursor}))
	})
}
