package xen

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/diagnose"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/hosttest"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// answer is what a command prints with -o json.
type answer struct {
	command string
	value   any
}

// script runs twenty commands on a host, and returns what they print. Each host creates the VM web from a definition in
// the form of its hypervisor, on node 1.
func script(t *testing.T, h *operate.Host, create operate.CreateRequest) (all []answer) {
	t.Helper()
	h.Journal, h.By = record.Journal{Folder: t.TempDir()}, "root"
	add := func(command string, value any, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		all = append(all, answer{command, value})
	}
	look := func() inventory.Host {
		inv, err := h.Observe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return inv
	}
	bind := func(r operate.BindRequest) (operate.Bound, error) {
		r.Name = "web"
		return h.Bind(t.Context(), r)
	}
	list := func() any {
		inv := look()
		return map[string]any{"guests": operate.Truths(&inv)}
	}
	inv := look()
	add("topology", inv.Topology, nil)
	add("capture of an empty host", inv, nil)
	add("list of an empty host", list(), nil)
	p, why, err := place.Place(place.Request{Host: &inv, Spec: create.Spec})
	add("place", map[string]any{"placement": p, "why": why}, err)
	would, err := h.WouldCreate(t.Context(), create)
	add("create --dry-run", would, err)
	made, err := h.Create(t.Context(), create)
	add("create", made, err)
	add("list", list(), nil)
	view, _, err := h.Show(t.Context(), "web")
	add("show", view, err)
	b, err := bind(operate.BindRequest{DryRun: true})
	add("bind --dry-run", b, err)
	b, err = bind(operate.BindRequest{Recompute: true})
	add("bind --recompute", b, err)
	home, _ := made.Placement.Nodes.First()
	b, err = bind(operate.BindRequest{Change: toNode(1 - home), DryRun: true})
	add("bind --nodes OTHER --dry-run", b, err)
	b, err = bind(operate.BindRequest{Change: toNode(1 - home)})
	add("bind --nodes OTHER", b, err)
	inv = look()
	add("capture", inv, nil)
	plan, err := balance.Plan(balance.Request{Host: &inv, Now: inv.Taken, Lasting: true})
	add("balance", plan, err)
	add("doctor", diagnose.RunUnder(&inv, policy.Policy{}), nil)
	undone, err := (&move.Host{Host: *h}).Undo(t.Context(), move.UndoRequest{})
	add("undo", undone, err)
	what, err := h.WouldDelete(t.Context(), operate.DeleteRequest{Name: "web"})
	add("delete --dry-run", map[string]string{"would": what}, err)
	add("delete", map[string]string{"deleted": "web"}, h.Delete(t.Context(), operate.DeleteRequest{Name: "web"}))
	entries, err := h.Journal.Entries()
	add("history", map[string]any{"entries": entries}, err)
	inv = look()
	add("pool list", inv.Pools, nil)
	return all
}

// shape is the shape of a value in JSON.
func shape(t *testing.T, value any) hosttest.Shape {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	s, err := hosttest.ShapeOf(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// FIELD row P4, one plane for KVM and Xen: a script of twenty commands gives answers of the same shape on both.
func TestP4_OnePlaneForKVMAndXen(t *testing.T) {
	spec := guest.Spec{Name: "web", VCPUs: 2, Memory: 512 * topology.MiB}
	spec, err := spec.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	machine := fake.MustNew("nodes:2 cores:4 memory:4G")
	kvm := script(t, &hosttest.Join(machine, t.TempDir(), time.Now).Host, operate.CreateRequest{Spec: spec,
		Render: func(i guest.Intent) (operate.Rendered, error) {
			d, err := fake.Render(i)
			return operate.Rendered{Definition: d}, err
		}})
	h, _ := joined(t)
	xen := script(t, h, request(t, h, "name = 'web'\nvcpus = 2\nmemory = 512\n"))
	if len(kvm) != 20 || len(xen) != len(kvm) {
		t.Errorf("%d and %d commands, want 20", len(kvm), len(xen))
	}
	for i := range kvm {
		d := hosttest.PlaneDifferences(shape(t, kvm[i].value), shape(t, xen[i].value))
		if len(d) > 0 {
			t.Errorf("%s:\n\t%s", kvm[i].command, strings.Join(d, "\n\t"))
		}
	}
}
