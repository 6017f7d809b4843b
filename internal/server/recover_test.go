package server

import (
	"slices"
	"strings"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
)

// All tokens of admins have expired: only the owner of the records can make a new one.
func TestRecoverAdmin(t *testing.T) {
	r := newRig(t)
	if _, err := r.admin.PutUser(t.Context(), "ann", fleetapi.UserEdit{Role: fleetapi.Admin}); err != nil {
		t.Fatal(err)
	}
	short, err := r.admin.CreateToken(t.Context(), "ann", fleetapi.TokenCreate{Hours: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.admin.PutUser(t.Context(), "bob", fleetapi.UserEdit{Role: fleetapi.Operator}); err != nil {
		t.Fatal(err)
	}
	for name, says := range map[string]string{"bob": "bob is operator", "a/b": "allowed are"} {
		if _, err := RecoverAdmin(t.Context(), r.store, name, time.Now()); err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("user %s: %v", name, err)
		}
	}
	later := time.Now().Add(2 * time.Hour)
	for i, name := range []string{"ann", "new"} {
		token, err := RecoverAdmin(t.Context(), r.store, name, later.Add(time.Duration(i)*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		client := r.client(token)
		r.eventually("the token of "+name+" is valid", func() bool {
			_, err := client.Users(t.Context())
			return err == nil
		})
		all, err := client.Users(t.Context())
		at := slices.IndexFunc(all.Users, func(u fleetapi.User) bool { return u.Name == name })
		if err != nil || at < 0 {
			t.Fatalf("got %+v, %v", all, err)
		}
		u := all.Users[at]
		if u.Role != fleetapi.Admin || len(u.Tokens) != 1 || u.Tokens[0].ID == short.ID {
			t.Errorf("got %+v", u)
		}
		audit, err := client.Audit(t.Context(), 1, "")
		if err != nil || len(audit.Entries) != 1 || audit.Entries[0].User != "recover-admin" ||
			audit.Entries[0].Name != name {
			t.Errorf("got %+v, %v", audit, err)
		}
	}
}
