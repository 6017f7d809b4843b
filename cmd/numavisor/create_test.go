package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/libvirt"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// libvirt's daemon runs in another folder: a relative path counts from the
// folder of the command.
func TestCreate_ResolvesRelativePaths(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	m := libvirt.Machine{Kernel: "boot/vmlinuz"}
	if err := absolute(&m, []string{"web.qcow2", "/srv/db.qcow2"}); err != nil {
		t.Fatal(err)
	}
	for got, want := range map[string]string{
		m.Kernel:        filepath.Join(here, "boot/vmlinuz"),
		m.Disks[0].Path: filepath.Join(here, "web.qcow2"),
		m.Disks[1].Path: "/srv/db.qcow2",
		m.Initrd:        "",
	} {
		if got != want {
			t.Errorf("path %q, want %q", got, want)
		}
	}
}

// A dry run of create shows the placement, each step and the domain XML, or what
// changes in a given one.
func TestPrintWouldCreate(t *testing.T) {
	r := operate.CreateRequest{Spec: guest.Spec{Name: "web1", VCPUs: 2, Memory: topology.GiB}}
	p := operate.CreatePlan{XML: "<domain>\n  <name>web1</name>\n  <cputune/>\n</domain>\n",
		Placement: guest.Placement{Guest: "web1", Nodes: topology.MustParseSet[topology.NodeID]("2")},
		Pools:     []plan.Step{{Kind: plan.GrowPool, Pages: 512, PageSize: 2 * topology.MiB, Node: 2}}}
	var fresh, given bytes.Buffer
	printWouldCreate(&fresh, r, p, nil)
	printWouldCreate(&given, r, p, []byte("<domain>\n  <name>web1</name>\n</domain>\n"))
	for _, want := range []string{"1. reserve 2 vCPUs and 1 GiB on nodes 2", "2. grow-huge-page-pool: 512 pages",
		"3. define VM web1 in libvirt and start it", "4. read its nodes", "<name>web1</name>"} {
		if !strings.Contains(fresh.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &fresh)
		}
	}
	if text := given.String(); !strings.Contains(text, "\n+  <cputune/>\n") || strings.Contains(text, "+  <name>") {
		t.Errorf("not the difference:\n%s", text)
	}
	r.Transient = true
	given.Reset()
	if printWouldCreate(&given, r, p, nil); !strings.Contains(given.String(), "without a stored configuration") {
		t.Errorf("a transient VM:\n%s", &given)
	}
}
