package guest_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestNotes(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*guest.Spec)
		says   []string
	}{
		{"nothing unexpected", func(*guest.Spec) {}, nil},
		{"passthrough", func(s *guest.Spec) { s.Devices = []guest.DeviceSpec{{Address: "3B:00.0", Passthrough: true}} },
			[]string{"movable is false", "0000:3b:00.0"}},
		{"passthrough, not movable by intent", func(s *guest.Spec) {
			s.Devices, s.Movable = []guest.DeviceSpec{{Address: "3b:00.0", Passthrough: true}}, new(bool)
		}, nil},
		{"a device nearby", func(s *guest.Spec) { s.Devices = []guest.DeviceSpec{{Address: "3b:00.0"}} }, nil},
		{"huge pages", func(s *guest.Spec) { s.PageSize = 2 * topology.MiB }, []string{"immediate is true", "2 MiB"}},
		{"huge pages at start by intent", func(s *guest.Spec) {
			s.PageSize, s.Binding.Immediate = 2*topology.MiB,
				true
		}, nil},
		{"interleaved cells", func(s *guest.Spec) { s.Binding.Mode, s.Topology.Count = guest.MemoryInterleave, 2 },
			[]string{"distances"}},
		{"an interleaved mirror", func(s *guest.Spec) {
			s.Binding.Mode, s.Topology.Mode = guest.MemoryInterleave,
				guest.TopologyMirror
		}, []string{"distances"}},
		{"interleaved, no cells", func(s *guest.Spec) {
			s.Binding.Mode, s.Topology.Mode = guest.MemoryInterleave,
				guest.TopologyOff
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := small()
			c.change(&s)
			notes := strings.Join(s.Notes(), "\n")
			if (notes == "") != (len(c.says) == 0) {
				t.Errorf("notes %q, want %q", notes, c.says)
			}
			for _, want := range c.says {
				if !strings.Contains(notes, want) {
					t.Errorf("notes %q do not say %q", notes, want)
				}
			}
		})
	}
}

// Normalize applies the consequence that a note describes: a normal spec yields
// notes only about explicit requests.
func TestNotesComeTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := small() // valid whatever of these is drawn
		s.PageSize = rapid.SampledFrom([]topology.Bytes{0, 2 * topology.MiB, gib}).Draw(t, "page size")
		s.Binding.Immediate = rapid.Bool().Draw(t, "immediate")
		s.Binding.Mode = rapid.SampledFrom([]guest.MemoryMode{"", guest.MemoryStrict, guest.MemoryInterleave}).
			Draw(t, "mode")
		s.Topology.Count = rapid.IntRange(0, 3).Draw(t, "cells")
		s.Devices = []guest.DeviceSpec{{Address: "3b:00.0", Passthrough: rapid.Bool().Draw(t, "passthrough")}}
		s.Movable = rapid.SampledFrom([]*bool{nil, new(bool)}).Draw(t, "movable")
		n, err := s.Normalize()
		if err != nil {
			t.Fatal(err)
		}
		for _, note := range s.Notes() {
			switch {
			case strings.HasPrefix(note, "movable is false") && n.IsMovable():
				t.Fatal("still movable")
			case strings.HasPrefix(note, "memory_binding.immediate is true") && !n.Binding.Immediate:
				t.Fatal("not immediate")
			}
		}
		for _, note := range n.Notes() {
			if strings.Contains(note, " is ") {
				t.Fatalf("a normal spec says %q", note)
			}
		}
	})
}

var sizes = regexp.MustCompile(`\b(memory|page_size): (\d+)`)

// YAML -> Spec -> JSON -> Spec.
func TestSpecSurvivesYAMLAndJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawSpec(t)
		if want.CPU.Binding == "tight" { // a file with this word is refused
			want.CPU.Binding = guest.CPURange
		}
		text, err := yaml.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		text = sizes.ReplaceAll(text, []byte("$1: ${2}B")) // people give units, programs write bytes
		first, err := guest.ParseSpec(strings.NewReader(string(text)))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		written, err := json.Marshal(first.Spec)
		if err != nil {
			t.Fatal(err)
		}
		var second guest.Spec
		if err := json.Unmarshal(written, &second); err != nil {
			t.Fatalf("%s: %v", written, err)
		}
		for name, got := range map[string]guest.Spec{"from YAML": first.Spec, "from JSON": second} {
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("%s (-want +got):\n%s", name, diff)
			}
		}
	})
}
