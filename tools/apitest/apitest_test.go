package main

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"testing"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
)

// A run may remove VMs and hosts, and cordon others: the tool makes them again.
func TestFleet_IsMadeCompleteAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds and starts a server: 'go test ./tools/apitest'")
	}
	server := filepath.Join(t.TempDir(), "numavisor-server")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", server, "../../cmd/numavisor-server")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f, err := startFleet(t.Context(), server, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.stop(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := f.admin.DeleteVM(t.Context(), vmName(0), fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	if err := f.admin.RemoveHost(t.Context(), spare(0)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.admin.MigrateVM(t.Context(), vmName(1), fleetapi.VMMigrate{}, fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.admin.Cordon(t.Context(), hostName(1)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), readyTime)
	defer cancel()
	err = until(ctx, func() error {
		if err := f.allRun(ctx); err != nil {
			return err
		}
		_, err := f.admin.Host(ctx, spare(0))
		h, err2 := f.admin.Host(ctx, hostName(1))
		if h.Cordoned {
			return errors.New("the host is still cordoned")
		}
		return errors.Join(err, err2)
	})
	if err != nil {
		t.Error(err)
	}
}

// Each role of the API has a run.
func TestRoles_HaveSharesAndNames(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range roles() {
		if r.share <= 0 || seen[r.name] || (r.role == "") != (r.name == "nobody") {
			t.Errorf("role %+v", r)
		}
		seen[r.name] = true
	}
	for _, role := range fleetapi.Role("").Words() {
		if !seen[role] {
			t.Errorf("no run as %s", role)
		}
	}
}
