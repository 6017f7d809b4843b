package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/server/auth"
	"github.com/numavisor/numavisor/internal/server/store"
)

// join is a one-time token of a joining host, as it is stored.
type join struct {
	Expires time.Time `json:"expires"`
	By      string    `json:"by"`
}

// tokens finds users by the hashes of their tokens.
type tokens struct {
	mu    sync.Mutex
	by    map[string]owner
	stale bool
}

type owner struct {
	user    string
	expires time.Time
}

func (k *tokens) noteChange(_ *state, c change) {
	if c.tokens {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.stale = true
	}
}

// find returns the owner of a token.
func (k *tokens) find(st *state, hash string) (owner, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.by == nil || k.stale {
		k.by, k.stale = map[string]owner{}, false
		for name, u := range st.users {
			for _, token := range u.value.Tokens {
				k.by[token.Hash] = owner{name, token.Expires}
			}
		}
	}
	o, ok := k.by[hash]
	return o, ok
}

// Authenticate implements rest.Service.
func (s *Server) Authenticate(_ context.Context, token string) (found *fleetapi.User, err error) {
	if !auth.IsUser(token) {
		return nil, nil //nolint:nilnil // no user and no error: the token is unknown
	}
	hash := auth.Hash(token)
	s.cache.mu.RLock()
	defer s.cache.mu.RUnlock()
	if !s.cache.ready {
		return nil, errors.New("the state of the store has not been read yet")
	}
	st := s.cache.state
	o, ok := s.tokens.find(st, hash)
	if !ok || !o.expires.IsZero() && s.Now().After(o.expires) {
		return nil, nil //nolint:nilnil // as above
	}
	u := st.users[o.user].value
	return &fleetapi.User{Name: o.user, Role: u.Role, Projects: u.Projects}, nil
}

// checkName: names of projects and users are parts of keys and paths.
func checkName(what, name string) error {
	if matched, err := regexp.MatchString(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$`, name); err != nil || !matched {
		return fleetapi.NewProblem(fleetapi.ProblemInvalid, fmt.Sprintf(
			"%s %.70q: allowed are 1 to 64 letters, digits and . _ @ -, a letter or digit first", what, name))
	}
	return nil
}

func showProject(st *state, name string) fleetapi.Project {
	p := st.projects[name]
	return fleetapi.Project{Name: name, Quota: p.value.Quota, Used: st.used[name], Revision: p.revision}
}

// Projects implements rest.Service.
func (s *Server) Projects(_ context.Context, c rest.Call) (fleetapi.Projects, error) {
	out := fleetapi.Projects{Projects: []fleetapi.Project{}}
	s.cache.read(func(st *state) {
		for _, name := range projectsOf(st, c.User) {
			out.Projects = append(out.Projects, showProject(st, name))
		}
	})
	return out, nil
}

// Project implements rest.Service.
func (s *Server) Project(_ context.Context, c rest.Call, name string) (out fleetapi.Project, err error) {
	missing := "there is no project " + name
	s.cache.read(func(st *state) {
		if _, ok := st.projects[name]; !ok {
			err = fleetapi.NewProblem(fleetapi.ProblemNotFound, missing)
			return
		}
		out, err = showProject(st, name), c.Allow(name, missing)
	})
	if err != nil {
		return fleetapi.Project{}, err
	}
	return out, nil
}

// PutProject implements rest.Service.
func (s *Server) PutProject(
	ctx context.Context, c rest.Call, name string, e fleetapi.ProjectEdit,
) (fleetapi.Project, error) {
	if err := checkName("project", name); err != nil {
		return fleetapi.Project{}, err
	}
	_, err := s.decide(ctx, func(st *state, t *transaction) error {
		at, exists := st.projects[name]
		if err := c.CheckRevision(at.revision); err != nil {
			return err
		}
		next := project{Quota: e.Quota}
		if exists && same(next, at.value) {
			return errNothing
		}
		t.require(store.Projects+name, at.revision)
		t.put(store.Projects+name, next)
		s.audit(t, &c, fleetapi.AboutProject, name, before(at, exists), next)
		return nil
	})
	if err != nil {
		return fleetapi.Project{}, err
	}
	return s.Project(ctx, c, name)
}

// before returns the value of a record for the audit; nil if it did not exist.
func before[T any](at record[T], exists bool) any {
	if !exists {
		return nil
	}
	return at.value
}

// DeleteProject implements rest.Service.
func (s *Server) DeleteProject(ctx context.Context, c rest.Call, name string) error {
	_, err := s.decide(ctx, func(st *state, t *transaction) error {
		at, ok := st.projects[name]
		if !ok {
			return fleetapi.NewProblem(fleetapi.ProblemNotFound, "there is no project "+name)
		}
		if err := c.CheckRevision(at.revision); err != nil {
			return err
		}
		if n := st.used[name].VMs; n > 0 {
			return fleetapi.NewProblem(fleetapi.ProblemConflict, fmt.Sprintf("project %s still has %d VMs", name, n))
		}
		t.require(store.Projects+name, at.revision)
		t.require(store.Usage+name, st.keys[store.Usage+name])
		t.remove(store.Projects + name)
		t.remove(store.Usage + name)
		s.audit(t, &c, fleetapi.AboutProject, name, at.value, nil)
		return nil
	})
	return err
}

// showUser returns a user without the hashes of tokens.
func showUser(name string, u record[user]) fleetapi.User {
	out := fleetapi.User{Name: name, Role: u.value.Role, Projects: u.value.Projects, Revision: u.revision}
	for _, token := range u.value.Tokens {
		out.Tokens = append(out.Tokens, token.Token)
	}
	return out
}

// Users implements rest.Service.
func (s *Server) Users(context.Context, rest.Call) (fleetapi.Users, error) {
	out := fleetapi.Users{Users: []fleetapi.User{}}
	s.cache.read(func(st *state) {
		for _, name := range st.sorted(store.Users) {
			out.Users = append(out.Users, showUser(name, st.users[name]))
		}
	})
	return out, nil
}

func noSuchUser(name string) error {
	return fleetapi.NewProblem(fleetapi.ProblemNotFound, "there is no user "+name)
}

// User implements rest.Service.
func (s *Server) User(_ context.Context, _ rest.Call, name string) (out fleetapi.User, err error) {
	s.cache.read(func(st *state) {
		u, ok := st.users[name]
		if !ok {
			err = noSuchUser(name)
			return
		}
		out = showUser(name, u)
	})
	return out, err
}

// changeUser changes a user's record. A result with an empty role removes the user.
func (s *Server) changeUser(
	ctx context.Context, c rest.Call, name string, f func(u user, exists bool) (user, error),
) error {
	_, err := s.decide(ctx, func(st *state, t *transaction) error {
		at, exists := st.users[name]
		if err := c.CheckRevision(at.revision); err != nil {
			return err
		}
		u := at.value
		u.Tokens = slices.Clone(u.Tokens)
		next, err := f(u, exists)
		if err != nil {
			return err
		}
		if exists && same(next, at.value) {
			return errNothing
		}
		if s.administers(at.value) && !s.administers(next) {
			other := s.otherAdmin(st, name)
			if other == "" {
				return fleetapi.NewProblem(fleetapi.ProblemConflict,
					"user "+name+" is the last admin with a valid token: make another one first")
			}
			// Of two admins who remove each other at the same time, one conflicts.
			t.require(store.Users+other, st.users[other].revision)
		}
		shown := func(u record[user], has bool) any {
			if !has {
				return nil
			}
			return showUser(name, u)
		}
		t.require(store.Users+name, at.revision)
		if next.Role == "" {
			t.remove(store.Users + name)
		} else {
			t.put(store.Users+name, next)
		}
		s.audit(t, &c, fleetapi.AboutUser, name, shown(at, exists), shown(record[user]{value: next}, next.Role != ""))
		return nil
	})
	return err
}

// administers reports whether a user is an admin who has a token that is valid now.
func (s *Server) administers(u user) bool {
	return u.Role == fleetapi.Admin && slices.ContainsFunc(u.Tokens, func(t storedToken) bool {
		return t.Expires.IsZero() || s.Now().Before(t.Expires)
	})
}

// otherAdmin returns the first other admin with a valid token; empty: there is none.
func (s *Server) otherAdmin(st *state, name string) string {
	for _, other := range slices.Sorted(maps.Keys(st.users)) {
		if other != name && s.administers(st.users[other].value) {
			return other
		}
	}
	return ""
}

// PutUser implements rest.Service.
func (s *Server) PutUser(ctx context.Context, c rest.Call, name string, e fleetapi.UserEdit) (fleetapi.User, error) {
	if err := checkName("user", name); err != nil {
		return fleetapi.User{}, err
	}
	for _, p := range e.Projects {
		if p != fleetapi.AllProjects {
			if err := checkName("project", p); err != nil {
				return fleetapi.User{}, err
			}
		}
	}
	err := s.changeUser(ctx, c, name, func(u user, _ bool) (user, error) {
		u.Role, u.Projects = e.Role, e.Projects
		return u, nil
	})
	if err != nil {
		return fleetapi.User{}, err
	}
	return s.User(ctx, c, name)
}

// DeleteUser implements rest.Service.
func (s *Server) DeleteUser(ctx context.Context, c rest.Call, name string) error {
	return s.changeUser(ctx, c, name, func(_ user, exists bool) (user, error) {
		if !exists {
			return user{}, noSuchUser(name)
		}
		return user{}, nil
	})
}

// mostTokens bounds the tokens of a user.
const mostTokens = 100

// CreateToken implements rest.Service.
func (s *Server) CreateToken(
	ctx context.Context, c rest.Call, name string, k fleetapi.TokenCreate,
) (fleetapi.NewToken, error) {
	secret := auth.NewToken()
	token := fleetapi.Token{ID: secret.ID, Created: s.Now().UTC().Truncate(time.Second)}
	if k.Hours > 0 {
		token.Expires = token.Created.Add(time.Duration(k.Hours) * time.Hour)
	}
	err := s.changeUser(ctx, c, name, func(u user, exists bool) (user, error) {
		if !exists {
			return u, noSuchUser(name)
		}
		u.Tokens = slices.DeleteFunc(u.Tokens, func(t storedToken) bool {
			return !t.Expires.IsZero() && s.Now().After(t.Expires)
		})
		if len(u.Tokens) >= mostTokens {
			return u, fleetapi.NewProblem(fleetapi.ProblemConflict,
				fmt.Sprintf("user %s has %d tokens already: delete some", name, mostTokens))
		}
		u.Tokens = append(u.Tokens, storedToken{token, secret.Hash})
		return u, nil
	})
	if err != nil {
		return fleetapi.NewToken{}, err
	}
	return fleetapi.NewToken{Token: token, Secret: secret.Secret}, nil
}

// DeleteToken implements rest.Service.
func (s *Server) DeleteToken(ctx context.Context, c rest.Call, name, id string) error {
	return s.changeUser(ctx, c, name, func(u user, exists bool) (user, error) {
		left := slices.DeleteFunc(slices.Clone(u.Tokens), func(t storedToken) bool { return t.ID == id })
		if !exists || len(left) == len(u.Tokens) {
			return u, fleetapi.NewProblem(fleetapi.ProblemNotFound, "user "+name+" has no token "+id)
		}
		u.Tokens = left
		return u, nil
	})
}

// audit adds to a transaction who makes it.
func (s *Server) audit(t *transaction, c *rest.Call, kind fleetapi.AuditKind, name string, before, after any) {
	auditAt(t, c, kind, name, before, after, s.Now().UTC())
}

// auditAt is audit at a time.
func auditAt(
	t *transaction, c *rest.Call, kind fleetapi.AuditKind, name string, before, after any, now time.Time,
) {
	by := "server"
	if c.User != nil {
		by = c.User.Name
	}
	id := fmt.Sprintf("%016x-%s", now.UnixNano(), auth.NewToken().ID[:6]) // ascending by time
	t.put(store.Audit+id, fleetapi.AuditEntry{ID: id, At: now, User: by, Operation: c.Operation.ID, Kind: kind,
		Name: name, Object: string(kind) + " " + name, Before: before, After: after})
}

// Audit implements rest.Service.
func (s *Server) Audit(ctx context.Context, _ rest.Call, p rest.Page) (fleetapi.Audit, error) {
	records, _, err := s.Store.List(ctx, store.Audit)
	if err != nil && !errors.Is(err, store.ErrStale) {
		return fleetapi.Audit{}, unavailable(err)
	}
	out := fleetapi.Audit{Entries: []fleetapi.AuditEntry{}}
	for _, r := range slices.Backward(records) {
		var e fleetapi.AuditEntry
		if json.Unmarshal(r.Value, &e) != nil || p.Cursor != "" && e.ID >= p.Cursor {
			continue
		}
		if len(out.Entries) == p.Limit {
			out.Next = out.Entries[p.Limit-1].ID
			break
		}
		out.Entries = append(out.Entries, e)
	}
	return out, nil
}

// FirstAdmin makes the first user of a new fleet, and the project "default". It returns the user's token, and
// "" if the fleet has users already.
func FirstAdmin(ctx context.Context, to store.Store, now time.Time) (string, error) {
	token := auth.NewToken()
	t := &transaction{}
	t.require(store.Users+"admin", 0)
	t.put(store.Users+"admin", user{Role: fleetapi.Admin, Projects: []string{fleetapi.AllProjects},
		Tokens: []storedToken{{fleetapi.Token{ID: token.ID, Created: now.UTC().Truncate(time.Second)}, token.Hash}}})
	t.require(store.Projects+fleetapi.DefaultProject, 0)
	t.put(store.Projects+fleetapi.DefaultProject, project{})
	if t.err != nil {
		return "", t.err
	}
	_, err := to.Commit(ctx, t.Txn)
	var conflict *store.ConflictError
	if errors.As(err, &conflict) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("storing the first user: %w", err)
	}
	return token.Secret, nil
}

// FirstJoin makes a one-time token for the first host.
func FirstJoin(ctx context.Context, to store.Store, expires time.Time) (string, error) {
	token := auth.NewJoin()
	t := &transaction{}
	t.require(store.Joins+token.Hash, 0)
	t.put(store.Joins+token.Hash, join{Expires: expires.UTC().Truncate(time.Second), By: "server init"})
	if t.err != nil {
		return "", t.err
	}
	if _, err := to.Commit(ctx, t.Txn); err != nil {
		return "", fmt.Errorf("storing a token for a host: %w", err)
	}
	return token.Secret, nil
}
