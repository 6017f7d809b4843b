package rest

import (
	"context"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
)

// OnProject names a project in the path.
type OnProject struct {
	Project string `path:"project" maxLength:"64"`
}

// OnUser names a user in the path.
type OnUser struct {
	User string `path:"user" maxLength:"64"`
}

func (r *routes) access() { //nolint:funlen // a table of operations
	s := r.service
	add(r, "whoami", func(_ context.Context, c Call, _ *noInput) (*Plain[fleetapi.User], error) {
		return plain(*c.User, nil)
	})
	add(r, "list-projects", func(ctx context.Context, c Call, _ *noInput) (*Plain[fleetapi.Projects], error) {
		return plain(s.Projects(ctx, c))
	})
	project := func(p fleetapi.Project, err error) (*Tagged[fleetapi.Project], error) {
		return tagged(p, p.Revision, err)
	}
	add(r, "get-project", func(ctx context.Context, c Call, in *OnProject) (*Tagged[fleetapi.Project], error) {
		return project(s.Project(ctx, c, in.Project))
	})
	add(r, "put-project", func(ctx context.Context, c Call, in *struct {
		OnProject
		Precondition
		Body fleetapi.ProjectEdit
	},
	) (*Tagged[fleetapi.Project], error) {
		return project(s.PutProject(ctx, c, in.Project, in.Body))
	})
	add(r, "delete-project", func(ctx context.Context, c Call, in *struct {
		OnProject
		Precondition
	},
	) (*Empty, error) {
		return empty(s.DeleteProject(ctx, c, in.Project))
	})
	add(r, "list-users", func(ctx context.Context, c Call, _ *noInput) (*Plain[fleetapi.Users], error) {
		return plain(s.Users(ctx, c))
	})
	user := func(u fleetapi.User, err error) (*Tagged[fleetapi.User], error) { return tagged(u, u.Revision, err) }
	add(r, "get-user", func(ctx context.Context, c Call, in *OnUser) (*Tagged[fleetapi.User], error) {
		return user(s.User(ctx, c, in.User))
	})
	add(r, "put-user", func(ctx context.Context, c Call, in *struct {
		OnUser
		Precondition
		Body fleetapi.UserEdit
	},
	) (*Tagged[fleetapi.User], error) {
		return user(s.PutUser(ctx, c, in.User, in.Body))
	})
	add(r, "delete-user", func(ctx context.Context, c Call, in *struct {
		OnUser
		Precondition
	},
	) (*Empty, error) {
		return empty(s.DeleteUser(ctx, c, in.User))
	})
	add(r, "create-token", func(ctx context.Context, c Call, in *struct {
		OnUser
		Body fleetapi.TokenCreate
	},
	) (*Plain[fleetapi.NewToken], error) {
		return plain(s.CreateToken(ctx, c, in.User, in.Body))
	})
	add(r, "delete-token", func(ctx context.Context, c Call, in *struct {
		OnUser
		Token string `path:"token" maxLength:"64"`
	},
	) (*Empty, error) {
		return empty(s.DeleteToken(ctx, c, in.User, in.Token))
	})
	add(r, "list-audit", func(ctx context.Context, c Call, in *struct{ Paging }) (*Plain[fleetapi.Audit], error) {
		return plain(s.Audit(ctx, c, in.page()))
	})
}
