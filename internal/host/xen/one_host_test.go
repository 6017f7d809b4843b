package xen

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fleetofone"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// observer is a daemon that only observes its host.
type observer struct{ host *operate.Host }

func (o observer) Status(context.Context) (status.Status, error) { return status.Status{}, nil }

func (o observer) Inventory(ctx context.Context) (inventory.Host, error) { return o.host.Observe(ctx) }

func (o observer) Policy(context.Context) (policy.Policy, error) {
	return policy.Policy{}.WithDefaults(), nil
}

// serveOneHost serves the API of a simulated Xen host, as its daemon does on its socket.
func serveOneHost(t *testing.T) (*fleetapi.Client, *simulated) {
	t.Helper()
	h, s := joined(t)
	ctx, end := context.WithCancel(context.Background())
	service := fleetofone.New(ctx, fleetofone.Options{Local: h, Daemon: observer{h}, Machines: xlMachines(),
		Types: []string{inventory.MachineXen}, Version: "test", Grace: time.Millisecond})
	path := filepath.Join(t.TempDir(), "daemon.sock")
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: service, ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	client, err := fleetapi.NewClient(fleetapi.Config{URL: "unix://" + path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		end()
		service.Wait()
		client.Close()
		_ = server.Close()
		<-served
	})
	return client, s
}

// The API of one Xen host creates and deletes VMs. It stops none: xl stores no configuration, so the VM would be gone.
func TestOneHost_CreatesAndDeletes(t *testing.T) {
	client, s := serveOneHost(t)
	asked := fleetapi.VMCreate{Spec: guest.Spec{Name: "web", VCPUs: 2, Memory: topology.GiB / 2},
		Machine: fleet.Machine{Type: inventory.MachineXen, Kernel: "/images/vmlinuz"}}
	would, err := client.CreateVM(t.Context(), asked, fleetapi.Change{DryRun: true})
	if err != nil || s.domain("web") != nil || would.Placement.Nodes.IsEmpty() {
		t.Fatalf("a dry run: %+v, error %v; the domain is %+v", would.Placement, err, s.domain("web"))
	}
	vm, err := client.CreateVM(t.Context(), asked, fleetapi.Change{})
	d := s.domain("web")
	if err != nil || vm.State != fleetapi.VMRunning || d == nil || !vm.Placement.Nodes.Contains(d.node) ||
		!vm.Placement.Nodes.Equal(would.Placement.Nodes) {
		t.Fatalf("%+v, error %v; the domain is %+v", vm, err, d)
	}
	var problem *fleetapi.Problem
	if _, err := client.StopVM(t.Context(), "web", fleetapi.Change{}); !errors.As(err, &problem) ||
		problem.Status != http.StatusConflict || s.domain("web") == nil {
		t.Errorf("stopping it: %v", err)
	}
	if _, err := client.DeleteVM(t.Context(), "web", fleetapi.Change{}); err != nil || s.domain("web") != nil ||
		s.stored() > 0 {
		t.Errorf("deleting it: %v; left are %+v and %d values in xenstore", err, s.domain("web"), s.stored())
	}
}

// A machine of KVM is refused before anything is created.
func TestOneHost_RefusesMachinesOfOtherTypes(t *testing.T) {
	client, s := serveOneHost(t)
	_, err := client.CreateVM(t.Context(),
		fleetapi.VMCreate{Spec: guest.Spec{Name: "web", VCPUs: 2, Memory: topology.GiB / 2}}, fleetapi.Change{})
	var problem *fleetapi.Problem
	if !errors.As(err, &problem) || problem.Status != http.StatusUnprocessableEntity || s.creations() > 0 {
		t.Errorf("error %v, %d creations", err, s.creations())
	}
}
