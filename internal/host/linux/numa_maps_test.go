package linux

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/topology"
)

func TestParseNUMAMapsLine(t *testing.T) {
	for _, c := range []struct {
		line string
		want Mapping
	}{
		{"7f0000000000 default", Mapping{Address: 0x7f0000000000, Policy: "default", Mode: "default"}},
		{"7f0000000000 bind:0-1 anon=3 dirty=3 active=1 N0=1 N1=2 kernelpagesize_kB=4",
			Mapping{Address: 0x7f0000000000, Policy: "bind:0-1", Mode: "bind", Nodes: nodes("0-1"), Anon: 3,
				Pages: map[topology.NodeID]uint64{0: 1, 1: 2}, PageSize: 4 * topology.KiB}},
		{"1000 prefer (many):2,64 heap anon=1 N64=1 kernelpagesize_kB=4",
			Mapping{Address: 0x1000, Policy: "prefer (many):2,64", Mode: "prefer (many)", Nodes: nodes("2,64"),
				Heap: true, Anon: 1, Pages: map[topology.NodeID]uint64{64: 1}, PageSize: 4 * topology.KiB}},
		{"1000 weighted interleave:0-3 stack", Mapping{Address: 0x1000, Policy: "weighted interleave:0-3",
			Mode: "weighted interleave", Nodes: nodes("0-3"), Stack: true}},
		{"1000 bind=static|balancing:0", Mapping{Address: 0x1000, Policy: "bind=static|balancing:0", Mode: "bind",
			Nodes: nodes("0")}},
		{"1000 prefer:1 file=/memfd:a\\040b\\075c\\134\\040(deleted) mapped=1 mapmax=2 N1=512 kernelpagesize_kB=4",
			Mapping{Address: 0x1000, Policy: "prefer:1", Mode: "prefer", Nodes: nodes("1"),
				File: `/memfd:a b=c\ (deleted)`, Pages: map[topology.NodeID]uint64{1: 512},
				PageSize: 4 * topology.KiB}},
		{"1000 default file=/dev/hugepages/a huge dirty=2 N3=2 kernelpagesize_kB=1048576",
			Mapping{Address: 0x1000, Policy: "default", Mode: "default", File: "/dev/hugepages/a", Huge: true,
				Pages: map[topology.NodeID]uint64{3: 2}, PageSize: topology.GiB}},
	} {
		got, gaps, err := ParseNUMAMaps(strings.NewReader(c.line + "\n"))
		if err != nil || len(gaps) > 0 {
			t.Errorf("%s: gaps %v, error %v", c.line, gaps, err)
		}
		if diff := cmp.Diff([]Mapping{c.want}, got); diff != "" {
			t.Errorf("%s:\n%s", c.line, diff)
		}
	}
}

func TestParseNUMAMaps_SkipsWhatItCannotParse(t *testing.T) {
	text := "1000 default N0=1 kernelpagesize_kB=4\n" +
		"2000 default zswapped=9 newflag N0=2 kernelpagesize_kB=4\n" +
		"3000 default N2=x kernelpagesize_kB=4\n" +
		"zzz default\n" +
		"4000 default N0=7\n" + // pages of unknown size are unknown bytes
		"5000 bind:banana\n" +
		"6000 default N1=3 kernelpagesize_kB=4\n"
	mappings, gaps, err := ParseNUMAMaps(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if len(mappings) != 3 || mappings[1].Pages[0] != 2 || mappings[2].Address != 0x6000 {
		t.Errorf("parsed %+v", mappings)
	}
	var whats []string
	for _, g := range gaps {
		whats = append(whats, g.What)
	}
	want := []string{`line 2: "zswapped=9"`, `line 2: "newflag"`, "line 3", "line 4", "line 5", "line 6"}
	if diff := cmp.Diff(want, whats); diff != "" {
		t.Errorf("gaps:\n%s", diff)
	}
}

func TestNUMAMapsLineTooLongIsAnErrorAndNotTheEnd(t *testing.T) {
	_, _, err := ParseNUMAMaps(
		strings.NewReader("1000 default file=/" + strings.Repeat("a", longestLine) + "\n2000 default\n"))
	if err == nil {
		t.Error("a line longer than any that the kernel writes passed without an error")
	}
}

func TestCapturedNUMAMaps(t *testing.T) {
	for _, name := range []string{"anon", "memfd", "huge", "hugefd", "cells", "file", "plain", "quiet"} {
		root, pid := captured(t, name)
		mappings, gaps, err := root.NUMAMaps(pid)
		if err != nil || len(gaps) > 0 || len(mappings) < 50 {
			t.Errorf("%s: %d mappings, gaps %v, error %v", name, len(mappings), gaps, err)
		}
	}
}

func FuzzParseNUMAMaps(f *testing.F) {
	f.Add([]byte("1000 prefer (many):2 file=/a\\040b huge N0=1 N3=4 kernelpagesize_kB=2048\n"))
	f.Add([]byte("1000 default heap anon=3 N0=18446744073709551615 kernelpagesize_kB=4"))
	f.Add([]byte("2000 bind=static:0-\n3000\n \n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		mappings, _, err := ParseNUMAMaps(bytes.NewReader(data))
		if err != nil {
			return
		}
		for _, m := range mappings {
			if m.Mode == "" {
				t.Errorf("mapping without a policy: %+v", m)
			}
			if len(m.Pages) > 0 && m.PageSize == 0 {
				t.Errorf("pages of unknown size: %+v", m)
			}
			for node, pages := range m.Pages {
				if pages > 0 && m.PageSize <= topology.GiB && m.ByNode()[node]/m.PageSize != topology.Bytes(pages) {
					t.Errorf("%d pages of %v on node %d overflow to %v", pages, m.PageSize, node, m.ByNode()[node])
				}
			}
		}
	})
}
