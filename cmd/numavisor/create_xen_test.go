package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/xen"
	"github.com/numavisor/numavisor/internal/topology"
)

// Cells are asked for by flags or by vnuma, not by both, and only for HVM VMs.
func TestSpecOfXL_Cells(t *testing.T) {
	topo, err := topology.Synthetic("nodes:2 cores:4 memory:4G")
	if err != nil {
		t.Fatal(err)
	}
	const vnuma = "vnuma = [['pnode=0','size=512','vcpus=0-1','vdistances=10']]\n"
	for _, c := range []struct {
		kind, more string
		args       string
		want       guest.TopologyMode // empty: refused
	}{
		{"pvh", "", "", guest.TopologyOff},
		{"pvh", "", "--topology off", guest.TopologyOff},
		{"pvh", "", "--topology auto", ""},
		{"pv", "", "--cells 1:256M,1:256M", ""},
		{"hvm", "", "", guest.TopologyOff},
		{"hvm", "", "--topology auto", guest.TopologyAuto},
		{"hvm", "", "--cells 1:256M,1:256M", guest.TopologyCells},
		{"hvm", vnuma, "", guest.TopologyCells},
		{"hvm", vnuma, "--topology off", ""},
		{"hvm", vnuma, "--cells 1:256M,1:256M", ""},
		{"pvh", vnuma, "", ""},
	} {
		config, err := xen.ParseConfig([]byte("name = 'x'\nmemory = 512\nvcpus = 2\ntype = '" + c.kind + "'\n" + c.more))
		if err != nil {
			t.Fatal(err)
		}
		set := pflag.NewFlagSet("create", pflag.ContinueOnError)
		flags := guest.BindFlags(set)
		if err := set.Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		asked, err := specOfXL(config, &topo, flags)
		var refused *xen.CellsError
		if c.want == "" && !errors.As(err, &refused) || c.want != "" && (err != nil || asked.Topology.Mode != c.want) {
			t.Errorf("%s with %q %s: topology %s, error %v; want %q", c.kind, c.more, c.args, asked.Topology.Mode, err, c.want)
		}
	}
}
