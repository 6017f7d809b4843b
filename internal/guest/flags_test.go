package guest_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

func parseFlags(args ...string) (*guest.FlagSpec, error) {
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f := guest.BindFlags(fs)
	return f, fs.Parse(args)
}

func TestFlagsSayTheWholeSpec(t *testing.T) {
	no := false
	f, err := parseFlags("--name", "db1", "--vcpus", "16", "--memory", "64G", "--page-size", "1G", "--cpu-binding",
		"exclusive", "--smt", "isolate", "--emulator", "housekeeping", "--io-threads=2", "--io-thread-policy",
		"exclusive", "--memory-binding", "strict", "--immediate", "--cells", "8:32G,8:32G", "--max-distance", "21",
		"--max-class", "neighbour", "--nodes", "0-1,4", "--cpus", "0-31", "--max-nodes", "2", "--device",
		"0000:3B:00.0,required,passthrough", "--device", "00:10.0", "--movable=false")
	if err != nil {
		t.Fatal(err)
	}
	got, err := f.Apply(guest.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	want := guest.Spec{
		Name: "db1", VCPUs: 16, Memory: 64 * gib, PageSize: gib,
		CPU: guest.CPUSpec{Binding: guest.CPUExclusive, SMT: guest.SMTIsolate, Emulator: guest.HelperHousekeeping,
			IOThreads: 2, IOPolicy: guest.HelperExclusive},
		Binding: guest.MemorySpec{Mode: guest.MemoryStrict, Immediate: true},
		Topology: guest.TopologySpec{
			Mode:  guest.TopologyCells,
			Count: 2,
			Cells: []guest.CellSpec{{VCPUs: 8, Memory: 32 * gib}, {VCPUs: 8, Memory: 32 * gib}},
		},
		Limits: guest.Limits{
			MaxDistance: 21,
			MaxClass:    topology.Neighbour,
			Nodes:       nodes("0-1,4"),
			CPUs:        cpus("0-31"),
			MaxNodes:    2,
		},
		Devices: []guest.DeviceSpec{{Address: "0000:3b:00.0", Required: true, Passthrough: true},
			{Address: "0000:00:10.0"}},
		Movable: &no,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFlagsOverrideTheSpecAndLeaveTheRest(t *testing.T) {
	spec := guest.Spec{Name: "web1", VCPUs: 4, Memory: gib,
		Topology: guest.TopologySpec{
			Mode:  guest.TopologyCells,
			Count: 1,
			Cells: []guest.CellSpec{{VCPUs: 4, Memory: gib}},
		},
		Limits:  guest.Limits{Nodes: nodes("0"), MaxNodes: 1},
		Devices: []guest.DeviceSpec{{Address: "0000:3b:00.0"}}}
	for _, c := range []struct {
		name   string
		args   []string
		change func(*guest.Spec)
	}{
		{"none", nil, func(*guest.Spec) {}},
		{"the last of several holds", []string{"--vcpus", "6", "--vcpus", "8"}, func(s *guest.Spec) { s.VCPUs = 8 }},
		{"an empty list lifts a limit", []string{"--nodes", "", "--max-nodes", "0"},
			func(s *guest.Spec) { s.Limits = guest.Limits{} }},
		{"another topology leaves no cells behind", []string{"--topology", "mirror"},
			func(s *guest.Spec) { s.Topology = guest.TopologySpec{Mode: guest.TopologyMirror} }},
		{"a number of cells", []string{"--topology", "2"},
			func(s *guest.Spec) { s.Topology = guest.TopologySpec{Mode: guest.TopologyCells, Count: 2} }},
		{"devices replace the spec's", []string{"--device", "00:10.0"},
			func(s *guest.Spec) { s.Devices = []guest.DeviceSpec{{Address: "0000:00:10.0"}} }},
		{"movable again", []string{"--movable"}, func(s *guest.Spec) { yes := true; s.Movable = &yes }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := parseFlags(c.args...)
			if err != nil {
				t.Fatal(err)
			}
			if f.Changed() != (len(c.args) > 0) {
				t.Errorf("Changed is %v", f.Changed())
			}
			want := spec
			c.change(&want)
			for range 2 { // applying does not use the flags up
				got, err := f.Apply(spec)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
			if len(spec.Devices) != 1 || spec.Devices[0].Address != "0000:3b:00.0" {
				t.Error("Apply changed its argument")
			}
		})
	}
}

func TestFlagsNameWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--vcpus", "four"}, "whole number"},
		{[]string{"--vcpus", "-1"}, "0 or more"},
		{[]string{"--memory", "16Q"}, "amount of memory"},
		{[]string{"--cpu-binding", "pin"}, "none range exclusive"},
		{[]string{"--topology", "0"}, "off, auto, mirror"},
		{[]string{"--topology", "cells"}, "off, auto, mirror"},
		{[]string{"--cells", "4"}, "4:8G,4:8G"},
		{[]string{"--cells", "4:8G,x:1G"}, `"x:1G"`},
		{[]string{"--cells", "4:8G,4:1Q"}, `"4:1Q"`},
		{[]string{"--nodes", "3-1"}, "backwards"},
		{[]string{"--device", "eth0"}, "lspci"},
		{[]string{"--device", "3b:00.0,fast"}, "required, passthrough"},
		{[]string{"--movable=perhaps"}, "true or false"},
		{[]string{"--topology", "2", "--cells", "4:8G"}, "--topology and --cells"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			f, err := parseFlags(c.args...)
			if err == nil {
				_, err = f.Apply(guest.Spec{})
			}
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), strings.SplitN(c.args[0], "=", 2)[0]) {
				t.Errorf("error %v; want one that names the flag and says %q", err, c.want)
			}
		})
	}
}

func FuzzFlags(f *testing.F) {
	for _, seed := range []string{"--cells=4:8G,4:8G", "--device=3b:00.0,required", "--topology=4096",
		"--nodes=0-10:1/2", "--memory=1e30"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		spec, err := parseFlags(arg)
		if err != nil {
			return
		}
		s, err := spec.Apply(small())
		if err != nil {
			return
		}
		_, _ = s.Normalize() // any answer, no panic
	})
}
