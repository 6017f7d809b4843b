package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
)

// The daemon and the commands place, bind and balance of a host use the same
// policy.
func TestPolicyFile_IsTheSameForTheDaemonAndTheCommands(t *testing.T) {
	for _, c := range []*cobra.Command{daemonCommand(), placeCommand(), bindCommand(), balanceCommand(),
		createCommand()} {
		if got := c.Flag("policy").DefValue; got != "/etc/numavisor/policy.yaml" {
			t.Errorf("%s reads its policy from %q without the flag", c.Name(), got)
		}
	}
	unit, err := os.ReadFile("../../deploy/systemd/numavisor.service")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(unit), "--policy") {
		t.Error("the service names a policy file of its own")
	}
}

func TestReadPolicy_WithoutTheFlag(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	on := hostFlags{policy: file}
	if p, err := on.readPolicy(context.Background()); err != nil || p.Balance.Mode != "" {
		t.Errorf("without a file: mode %q, %v; want the default policy", p.Balance.Mode, err)
	}
	if err := os.WriteFile(file, []byte("balance: {mode: advise}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := on.readPolicy(context.Background()); err != nil || p.Balance.Mode != policy.ModeAdvise {
		t.Errorf("mode %q, %v; want that of the file", p.Balance.Mode, err)
	}
	if err := os.WriteFile(file, []byte("nonsense: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := on.readPolicy(context.Background()); err == nil {
		t.Error("a malformed policy file counts as absent")
	}
}

// A policy belongs to a host: this host's file does not apply to a description of
// another one.
func TestReadPolicy_OfADescribedHost(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("balance: {mode: advise}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, from := range []hostSource{{inventory: "x"}, {root: "x"}, {capabilities: "x"}, {hwloc: "x"}, {xlInfo: "x"}} {
		on := hostFlags{policy: file, from: from}
		if p, err := on.readPolicy(context.Background()); err != nil || p.Balance.Mode != "" {
			t.Errorf("%+v: mode %q, %v; want the default policy", from, p.Balance.Mode, err)
		}
		on.isGiven = func(flag string) bool { return flag == "policy" }
		if p, err := on.readPolicy(context.Background()); err != nil || p.Balance.Mode != policy.ModeAdvise {
			t.Errorf("%+v with --policy: mode %q, %v; want that of the file", from, p.Balance.Mode, err)
		}
	}
}

func TestReadPolicy_GivenFileMustExist(t *testing.T) {
	on := hostFlags{policy: filepath.Join(t.TempDir(), "none.yaml"), isGiven: func(string) bool { return true }}
	if _, err := on.readPolicy(context.Background()); err == nil {
		t.Error("a file that --policy names and that does not exist counts as the default policy")
	}
}

func TestNotePolicies_WhereTheDaemonDecidesByAnotherOne(t *testing.T) {
	used, other := policy.Policy{}, policy.Policy{Balance: policy.Balance{Mode: policy.ModeOff}}
	for _, c := range []struct {
		daemon status.Policy
		want   string
	}{
		{status.Policy{File: "/b", Digest: used.Digest()}, ""},
		{status.Policy{}, ""}, // a daemon of an earlier version
		{status.Policy{File: "/b", Digest: other.Digest()}, "uses the policy in /a; the daemon uses another one, in /b"},
		{status.Policy{File: "/a", Digest: other.Digest()}, "earlier content of /a"},
	} {
		var noted strings.Builder
		notePolicies(&noted, "/a", used, c.daemon)
		if (c.want == "") != (noted.Len() == 0) || !strings.Contains(noted.String(), c.want) {
			t.Errorf("daemon %+v: noted %q, want %q", c.daemon, noted.String(), c.want)
		}
	}
}
