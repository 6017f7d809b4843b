package libvirt

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/beevik/etree"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// sized are the elements of a domain that its size and its binding change.
var sized = []string{"metadata", "memory", "currentMemory", "memoryBacking", "vcpu", "vcpus", "cputune", "numatune",
	"cpu"}

// TestResize_ChangesSizeAndBinding gives every fixture other sizes: the guest has them, is bound to the placement, and
// everything else is unchanged.
func TestResize_ChangesSizeAndBinding(t *testing.T) {
	for name, xml := range fixtures(t) {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				d := mustParse(t, xml)
				d.Config.VCPUs = rapid.IntRange(1, 9).Draw(rt, "vCPUs")
				unit := max(d.Config.PageSize, topology.MiB)
				d.BootMemory = unit * topology.Bytes(rapid.IntRange(16, 64).Draw(rt, "memory"))
				d.Config.Cells = nil
				p := drawPlacement(rt, d)
				intent := Metadata{Spec: guest.Spec{Name: d.Name, VCPUs: d.Config.VCPUs, Memory: d.BootMemory},
					Placement: p}
				resized, err := Resize(xml, intent)
				var refused *ContradictionError
				if errors.As(err, &refused) {
					if refused.Field != "size" || !dependsOnSize(xml) {
						rt.Fatalf("refused: %v", err)
					}
					return
				}
				if err != nil {
					rt.Fatalf("%v\nplacement %+v", err, p)
				}
				checkBound(rt, resized, p, intent)
				checkSize(rt, resized, d)
				if diff := cmp.Diff(outside(rt, xml), outside(rt, resized)); diff != "" {
					rt.Fatalf("changed a part outside size and binding:\n%s", diff)
				}
				again, err := Resize(resized, intent)
				if err != nil || !bytes.Equal(resized, again) {
					rt.Fatalf("second time: %v\n%s", err, cmp.Diff(string(resized), string(again)))
				}
			})
		})
	}
}

// dependsOnSize finds by text what makes Resize refuse a domain.
func dependsOnSize(xml []byte) bool {
	return slices.ContainsFunc([]string{"<memory model", "<maxMemory", "<interconnects", "memAccess", "discard=",
		"<node>"}, func(part string) bool { return strings.Contains(string(xml), part) })
}

func checkSize(t *rapid.T, resized []byte, want Domain) {
	d, err := ParseDomain(resized)
	if err != nil {
		t.Fatal(err)
	}
	if d.Config.VCPUs != want.Config.VCPUs || d.BootMemory != want.BootMemory || d.Config.Memory != want.BootMemory {
		t.Errorf("%d vCPUs and %v, at the start %v; want %d and %v", d.Config.VCPUs, d.Config.Memory, d.BootMemory,
			want.Config.VCPUs, want.BootMemory)
	}
	doc := etree.NewDocument()
	if err := doc.ReadFromBytes(resized); err != nil {
		t.Fatal(err)
	}
	if e := doc.FindElement("/domain/vcpu"); e == nil || e.Text() != strconv.Itoa(want.Config.VCPUs) ||
		e.SelectAttr("current") != nil {
		t.Errorf("<vcpu> is not %d: %s", want.Config.VCPUs, resized)
	}
	if e := doc.FindElement("/domain/cpu/topology"); e != nil {
		n := 1
		for _, a := range e.Attr {
			level, err := strconv.Atoi(a.Value)
			if err != nil {
				t.Fatal(err)
			}
			n *= level
		}
		if n != want.Config.VCPUs {
			t.Errorf("<topology> has %d CPUs, the guest %d", n, want.Config.VCPUs)
		}
	}
}

// outside returns the elements of a domain that Resize must not change, as text.
func outside(t *rapid.T, xml []byte) []string {
	doc := etree.NewDocument()
	if err := doc.ReadFromBytes(xml); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range doc.Root().ChildElements() {
		if slices.Contains(sized, e.Tag) {
			continue
		}
		part := etree.NewDocumentWithRoot(e.Copy())
		text, err := part.WriteToString()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text)
	}
	return all
}
