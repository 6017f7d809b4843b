package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/api/fleet/rest"
	"github.com/numavisor/numavisor/internal/server/auth"
	"github.com/numavisor/numavisor/internal/server/store"
)

// RecoverAdmin makes a token for an admin in the records of a fleet whose admins have no valid token any more. A user
// who does not exist becomes an admin of all projects; a user with another role is refused. The audit has the act,
// by "recover-admin". RecoverAdmin removes the user's expired tokens and leaves the valid ones.
func RecoverAdmin(ctx context.Context, in store.Store, name string, now time.Time) (string, error) {
	if err := checkName("user", name); err != nil {
		return "", err
	}
	var before record[user]
	r, err := in.Get(ctx, store.Users+name)
	exists := err == nil
	switch {
	case exists:
		if err := json.Unmarshal(r.Value, &before.value); err != nil {
			return "", fmt.Errorf("the record of user %s: %w", name, err)
		}
		before.revision = r.Revision
	case !errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrStale):
		return "", fmt.Errorf("reading user %s: %w", name, err)
	}
	if exists && before.value.Role != fleetapi.Admin {
		return "", fmt.Errorf("user %s is %s: name an admin, or a user who does not exist", name, before.value.Role)
	}
	next := record[user]{value: before.value}
	if !exists {
		next.value = user{Role: fleetapi.Admin, Projects: []string{fleetapi.AllProjects}}
	}
	token := auth.NewToken()
	next.value.Tokens = append(slices.DeleteFunc(slices.Clone(before.value.Tokens), func(t storedToken) bool {
		return !t.Expires.IsZero() && now.After(t.Expires)
	}), storedToken{fleetapi.Token{ID: token.ID, Created: now.UTC().Truncate(time.Second)}, token.Hash})

	t := &transaction{}
	t.require(store.Users+name, before.revision)
	t.put(store.Users+name, next.value)
	var shown any
	if exists {
		shown = showUser(name, before)
	}
	by := rest.Call{User: &fleetapi.User{Name: "recover-admin"}, Operation: fleetapi.Operation{ID: "recover-admin"}}
	auditAt(t, &by, fleetapi.AboutUser, name, shown, showUser(name, next), now.UTC())
	if t.err != nil {
		return "", t.err
	}
	if _, err := in.Commit(ctx, t.Txn); err != nil {
		return "", fmt.Errorf("storing the token: %w", err)
	}
	return token.Secret, nil
}
