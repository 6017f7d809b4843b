package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/host/agent"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/server"
	"github.com/numavisor/numavisor/internal/server/auth"
	"github.com/numavisor/numavisor/internal/server/store/memory"
)

// oneHostFleet starts a server and one host of a fleet, in memory, and configures the user's
// context "test" for it.
func oneHostFleet(t *testing.T) operatetest.World {
	t.Helper()
	w, _ := oneHostFleetWith(t, slog.New(slog.DiscardHandler))
	return w
}

// testFleet is the server of a fleet with its secrets.
type testFleet struct {
	address string
	ca      *auth.CA
	admin   *fleetapi.Client
	// token is the admin's, join the one with which the host joined; folder has the host's key.
	token, join, folder string
	log                 *slog.Logger
}

// oneHostFleetWith is oneHostFleet with a log of server and daemon.
func oneHostFleetWith(t *testing.T, log *slog.Logger) (operatetest.World, *testFleet) {
	t.Helper()
	records := memory.New(memory.Options{})
	ca, err := auth.NewCA("fleet", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	token, err := server.FirstAdmin(t.Context(), records, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := server.New(server.Options{Store: records, CA: ca, Log: log, Version: "test",
		Address: l.Addr().String(), Names: []string{"127.0.0.1"}})
	background(t, func(ctx context.Context) { s.Run(ctx, func() {}) })
	background(t, func(ctx context.Context) {
		if err := s.Serve(ctx, l); err != nil {
			t.Error(err)
		}
	})
	config, home := t.TempDir(), t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	t.Setenv("HOME", home)
	path := filepath.Join(config, "numavisor", "config.yaml")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	authority := filepath.Join(config, "ca.pem")
	text := fmt.Sprintf("contexts:\n  - {name: test, server: \"https://%s\", token: %q, ca: %s}\n", l.Addr(), token, authority)
	for file, data := range map[string]string{path: text, authority: string(ca.CertificatePEM())} {
		if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := &testFleet{address: l.Addr().String(), ca: ca, token: token, log: log}
	return f.joinFleet(t), f
}

// background runs a function until the test has ended.
func background(t *testing.T, do func(context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); do(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
}

type plainMachines struct{}

func (plainMachines) Prepare(context.Context, *fleet.VM) (operate.Renderer, func() error, error) {
	return operatetest.Render, nil, nil
}

// joinFleet lets a host in memory join.
func (f *testFleet) joinFleet(t *testing.T) operatetest.World {
	t.Helper()
	admin, err := fleetapi.NewClient(fleetapi.Config{URL: "https://" + f.address, Token: f.token,
		CA: f.ca.CertificatePEM()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	var made fleetapi.NewJoin
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) { // the server is starting
		if made, err = admin.CreateJoin(t.Context(), fleetapi.JoinCreate{}); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	w := operatetest.New(t, operatetest.Square, t.TempDir())
	w.Joined.Clock, w.Joined.Sources.Now = time.Now, time.Now
	folder := filepath.Join(t.TempDir(), "fleet")
	f.admin, f.join, f.folder = admin, made.Token, folder
	of, err := agent.Join(t.Context(), folder, agent.JoinRequest{Server: f.address, Token: made.Token,
		Fingerprint: made.Fingerprint, Host: "host7", ID: "id", Rack: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	a := agent.New(agent.Options{
		Member: of, Folder: folder, Log: f.log, Host: &w.Joined.Host, Machines: plainMachines{},
		Loads: func(ctx context.Context) (inventory.Host, error) { return w.Joined.Observe(ctx) },
		Look:  100 * time.Millisecond, LoadsEvery: 50 * time.Millisecond})
	background(t, func(ctx context.Context) {
		if err := a.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if h, err := admin.Host(t.Context(), "host7"); err == nil && h.Nodes > 0 && h.State == fleetapi.HostReachable {
			return w
		}
		if time.Now().After(end) {
			t.Fatal("the host does not report")
		}
	}
}

// A user's day with a fleet: the same commands as on one host, with --server.
func TestRemote_CommandsActOnAFleet(t *testing.T) {
	w := oneHostFleet(t)
	for _, step := range []struct {
		command string
		status  int
		says    string // a part of the output
	}{
		{"hosts --server test", exitDone, "host7"},
		{"list --server test", exitDone, "no VMs"},
		{"create --server test --project default --name web1 --vcpus 2 --memory 64M --dry-run", exitDone, "host7"},
		{"list --server test", exitDone, "no VMs"},
		{"create --server test --project default --name web1 --vcpus 2 --memory 64M", exitDone, "running"},
		{"create --server test --project default --name web1 --vcpus 2 --memory 64M", exitFailed, "web1"},
		{"list --server test", exitDone, "default"},
		{"list --server test web1 -o json", exitDone, `"state": "running"`},
		{"list --server test web2", exitFailed, "web2 is not in the fleet"},
		{"show --server test web1", exitDone, "why: "},
		{"stop --server test web1", exitDone, "stopped"},
		{"start --server test web1", exitDone, "running"},
		{"bind --server test web1", exitDone, "running"},
		{"migrate --server test web1 --post-copy --copy-storage", exitUsage, "copy_storage with post_copy"},
		{"migrate --server test web1 --max-downtime 1us", exitUsage, "whole milliseconds"},
		{"migrate --server test web1 --max-downtime 20ms --copy-storage", exitFailed, "no host"},
		{"alarms --server test", exitDone, "no alarms"},
		{"balance --server test", exitDone, "plan"},
		{"history --server test", exitDone, "placed on host host7, nodes"},
		{"history --server test web1 --last 1", exitDone, "start-vm"},
		{"history --server test web2", exitDone, "nothing is recorded"},
		{"history --server test --timeline", exitUsage, "--timeline works only on this host"},
		{"project set shop --server test --max-vcpus 4 --max-memory 1G", exitDone, "0 of 4"},
		{"project list --server test", exitDone, "of 1 GiB"},
		{"project set shop --server test --max-memory lots", exitUsage, "--max-memory"},
		{"user set ann --server test --role operator --projects shop", exitDone, "operator"},
		{"user set ann --server test", exitUsage, "--role is needed"},
		{"user set ann --server test --role root", exitFailed, "role"},
		{"token create ann --server test --expires 1h", exitDone, "nvu_"},
		{"token list ann --server test", exitDone, "ann"},
		{"token list bob --server test", exitFailed, "no user bob"},
		{"token revoke ann none --server test", exitFailed, "no token none"},
		{"token join --server test", exitDone, "numavisor daemon --join"},
		{"audit --server test --last 3", exitDone, "create-join"},
		{"user list --server test", exitDone, "shop"},
		{"user delete ann --server test", exitDone, "ann: deleted"},
		{"project delete shop --server test", exitDone, "shop: deleted"},
		{"top --server test --once", exitDone, "host7"},
		{"schedule --server test --headroom", exitPartial, "host7"},
		{"host cordon --server test host7", exitDone, "no: cordoned"},
		{"create --server test --project default --name web2 --vcpus 2 --memory 64M", exitPartial, "cordoned"},
		{"delete --server test web2", exitDone, "web2: deleted"},
		{"host uncordon --server test host7", exitDone, "yes"},
		{"delete --server test web1 --dry-run", exitDone, "would delete web1"},
		{"delete --server test web1", exitDone, "web1: deleted"},
		{"list --server test", exitDone, "no VMs"},
		// A flag that only works on this host is a usage error with a server.
		{"list --server test --drifted", exitUsage, "--drifted works only on this host"},
		{"create --server test --project default --name x --vcpus 1 --memory 64M --make-room", exitUsage, "--make-room works only"},
		{"create --server test --project default --name x --vcpus 1 --memory 64M --disk x.qcow2", exitUsage, "absolute path"},
		{"bind --server test --pid 1", exitUsage, "--pid works only on this host"},
		{"list --server nowhere", exitUsage, "neither a URL nor a context"},
		{"hosts --server local", exitUsage, "acts on a fleet"},
		{"hosts --server https://127.0.0.1:1", exitFailed, "does not answer"},
	} {
		var out, errs bytes.Buffer
		status := run(strings.Fields(step.command), &out, &errs)
		if status != step.status || !strings.Contains(out.String()+errs.String(), step.says) {
			t.Fatalf("numavisor %s: status %d, want %d with %q:\n%s%s", step.command, status, step.status, step.says,
				out.String(), errs.String())
		}
	}
	if _, exists := w.Guest("web1"); exists {
		t.Error("web1 is still on the host")
	}
}

// The environment names the server, and its token, as well.
func TestRemote_EnvironmentAndCurrentContext(t *testing.T) {
	oneHostFleet(t)
	var out, errs bytes.Buffer
	t.Setenv(serverVariable, "test")
	if status := run([]string{"hosts"}, &out, &errs); status != exitDone || !strings.Contains(out.String(), "host7") {
		t.Errorf("status %d: %s%s", status, out.String(), errs.String())
	}
	t.Setenv(tokenVariable, "guess")
	errs.Reset()
	if status := run([]string{"hosts"}, &out, &errs); status != exitFailed || strings.Contains(errs.String(), "guess") {
		t.Errorf("with a wrong token: status %d: %s", status, errs.String())
	}
	path, err := configFile()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(serverVariable, "")
	t.Setenv(tokenVariable, "")
	if err := os.WriteFile(path, append([]byte("current: test\n"), data...), 0o600); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if status := run([]string{"hosts"}, &out, &errs); status != exitDone || !strings.Contains(out.String(), "host7") {
		t.Errorf("status %d: %s%s", status, out.String(), errs.String())
	}
	if err := os.WriteFile(path, []byte("tokens_of: test\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	errs.Reset()
	if status := run([]string{"hosts"}, &out, &errs); status != exitUsage || !strings.Contains(errs.String(), "tokens_of") {
		t.Errorf("with a misspelt field: status %d: %s", status, errs.String())
	}
}
