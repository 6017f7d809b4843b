package libvirt

import (
	"testing"

	"github.com/numavisor/numavisor/internal/topology"
)

// TestEditsAtTheSamePlace: an insertion where a removal begins comes first, in
// whichever order they were requested.
func TestEditsAtTheSamePlace(t *testing.T) {
	doc := &document{src: []byte("abcdef")}
	ed := editor{doc: doc}
	ed.replace(2, 4, "-")
	ed.replace(2, 2, "1")
	ed.replace(2, 2, "2")
	ed.replace(6, 6, "!")
	if got := string(ed.result()); got != "ab12-ef!" {
		t.Errorf("result is %q", got)
	}
}

func TestRewriteWithoutLineBreaks(t *testing.T) {
	const in = `<domain><name>a</name><memory>2048</memory><vcpu>2</vcpu><cputune><vcpupin vcpu='0' cpuset='9'/></cputune></domain>`
	p := small(mustParse(t, []byte(in)))
	p.Visible, p.Movable = true, false
	p.Cells[0].Memory = 2 * topology.MiB
	for i := range p.VCPUs {
		p.VCPUs[i].CPUs = topology.CPUSet{}
	}
	got, err := Rewrite([]byte(in), p, Metadata{})
	if err != nil {
		t.Fatal(err)
	}
	const tail = `</metadata><memory>2048</memory><vcpu placement='static'>2</vcpu>` +
		`<cpu><numa><cell id='0' cpus='0-1' memory='2048' unit='KiB'/></numa></cpu>` +
		`<numatune><memory mode='strict' nodeset='1'/><memnode cellid='0' mode='strict' nodeset='1'/></numatune></domain>`
	if text := string(got); len(text) < len(tail) || text[len(text)-len(tail):] != tail {
		t.Errorf("ends in\n%s\nwanted\n%s", text, tail)
	}
}

func TestNamespace(t *testing.T) {
	doc, err := parse(
		[]byte(
			`<domain xmlns:a='outer'><metadata><x a='v' xmlns='plain'/><a:y a='v' xmlns:a='inner'/><a:z/><w/></metadata></domain>`,
		),
	)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"plain", "inner", "outer", ""} {
		if got := doc.root.child("metadata").children[i].namespace(); got != want {
			t.Errorf("element %d: namespace %q, not %q", i, got, want)
		}
	}
}
