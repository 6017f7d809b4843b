package operate_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// A dry run of create decides as create does, and changes nothing.
func TestWouldCreate_DecidesAsCreateAndChangesNothing(t *testing.T) {
	for name, asked := range specs {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, square, folderOf(t))
			request := operate.CreateRequest{Spec: spec(t, asked), Render: operatetest.Render}
			empty, pools := w.Nodes(), w.Pools()
			would, err := w.Joined.WouldCreate(context.Background(), request)
			if err != nil {
				t.Fatal(err)
			}
			if _, there := w.Guest("new"); there {
				t.Error("the VM was started")
			}
			if diff := cmp.Diff(empty, w.Nodes()); diff != "" {
				t.Errorf("the host has changed (-before +after):\n%s", diff)
			}
			if entries, err := w.Joined.Journal.Entries(); err != nil || len(entries) > 0 {
				t.Errorf("journal %+v, %v; want none", entries, err)
			}
			w.CheckSettled(t)
			made, err := w.Joined.Create(context.Background(), request)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(made.Placement, would.Placement); diff != "" {
				t.Errorf("create placed it elsewhere (-create +dry run):\n%s", diff)
			}
			if would.XML == "" {
				t.Error("no domain XML")
			}
			if grown := !slices.Equal(pools, w.Pools()); grown != (len(would.Pools) > 0) {
				t.Errorf("create enlarged pools: %v; the dry run has %v", grown, would.Pools)
			}
		})
	}
}

func TestWouldCreate_RefusesAsCreateDoes(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	w.MustAdd(t, fake.Definition{Name: "new",
		Config: inventory.Config{VCPUs: 1, Memory: 64 * mib, Source: "anonymous"}})
	request := func(name string, memory topology.Bytes) operate.CreateRequest {
		return operate.CreateRequest{Spec: spec(t, guest.Spec{Name: name, VCPUs: 1, Memory: memory}),
			Render: operatetest.Render}
	}
	taken := request("new", 64*mib)
	if _, err := w.Joined.WouldCreate(context.Background(), taken); !errors.Is(err, operate.ErrExists) {
		t.Errorf("a taken name: %v, want ErrExists", err)
	}
	large := request("big", 900*gib)
	if _, err := w.Joined.WouldCreate(context.Background(), large); err == nil {
		t.Error("a VM that fits nowhere would be created")
	}
}
