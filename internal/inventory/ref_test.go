package inventory_test

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestRef_Text(t *testing.T) {
	for text, ref := range map[string]inventory.Ref{
		"host":                  inventory.HostRef(),
		"host: numad":           inventory.HostPartRef("numad"),
		"node 3":                inventory.NodeRef(3),
		"node 0: 2 MiB pages":   inventory.NodePartRef(0, "2 MiB pages"),
		"node 3: a: b":          inventory.NodePartRef(3, "a: b"),
		"guest web1":            inventory.GuestRef("web1"),
		"guest node 3":          inventory.GuestRef("node 3"),
		"guest host":            inventory.GuestRef("host"),
		"guest guest guest":     inventory.GuestRef("guest guest"),
		"guest  ":               inventory.GuestRef(" "),
		"guest web: 2 MiB page": inventory.GuestRef("web: 2 MiB page"),
		"guest two\nlines":      inventory.GuestRef("two\nlines"),
	} {
		if ref.String() != text {
			t.Errorf("text %q, want %q", ref, text)
		}
		if got, err := inventory.ParseRef(text); err != nil || got != ref {
			t.Errorf("%q: parsed as %#v, %v", text, got, err)
		}
	}
}

func TestParseRef_Refused(t *testing.T) {
	for _, text := range []string{
		"", " host", "host ", "Host", "host:", "host: ", "hosts", "node", "node ", "node x", "node -1", "node +1",
		"node 03",
		"node 3 ", "node 99999999999", "node 3:", "node 3: ", "guest", "guest ", "vm web1", "process 12", "numa_maps",
	} {
		if got, err := inventory.ParseRef(text); err == nil {
			t.Errorf("%q: parsed as %q", text, got)
		}
	}
}

// With any name of a guest or a part, a Ref is unchanged after JSON, and two
// different Refs never have the same text.
func TestRef_RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawRef(t), drawRef(t)
		data, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		var back inventory.Ref
		if err := json.Unmarshal(data, &back); err != nil || back != a {
			t.Fatalf("%s: %#v, %v; want %#v", data, back, err, a)
		}
		if (a.String() == b.String()) != (a == b) || (a.Compare(b) == 0) != (a == b) || a.Compare(b) != -b.Compare(a) {
			t.Fatalf("%#v and %#v: texts %q and %q, compare %d", a, b, a, b, a.Compare(b))
		}
	})
}

func drawRef(t *rapid.T) inventory.Ref {
	name := rapid.OneOf(rapid.StringN(1, 12, -1), rapid.SampledFrom([]string{"host", "node 3", "guest a", ": ",
		"node 3: 2 MiB pages", "a: b"})).
		Draw(t, "name")
	node := topology.NodeID(rapid.IntRange(0, 1023).Draw(t, "node"))
	return rapid.SampledFrom([]inventory.Ref{
		inventory.HostRef(), inventory.HostPartRef(name), inventory.NodeRef(node), inventory.NodePartRef(node,
			name), inventory.GuestRef(name),
	}).Draw(t, "ref")
}

func TestRef_Parts(t *testing.T) {
	for _, c := range []struct{ ref, whole inventory.Ref }{
		{inventory.HostPartRef("numad"), inventory.HostRef()},
		{inventory.NodePartRef(2, "2 MiB pages"), inventory.NodeRef(2)},
		{inventory.GuestRef("a: b"), inventory.GuestRef("a: b")},
	} {
		if got := c.ref.Whole(); got != c.whole {
			t.Errorf("%q is a part of %q, want %q", c.ref, got, c.whole)
		}
	}
	if inventory.HostPartRef("numad").IsHost() || !inventory.HostRef().IsHost() || inventory.NodeRef(0).IsHost() {
		t.Error("only the host itself is the host")
	}
	if id, ok := inventory.NodePartRef(2, "x").Node(); !ok || id != 2 {
		t.Errorf("node %d, %v", id, ok)
	}
	if name, ok := inventory.HostPartRef("x").Guest(); ok {
		t.Errorf("a part of the host is guest %q", name)
	}
}
