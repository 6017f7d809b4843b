package xen

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

const written = `# web server, see ticket 12
name = "web"      # the name
type = 'pvh'
vcpus=2; memory = 192
cpus = [ "0-1", # near the disk
         "2" ]
disk = [ "phy:/dev/vg/web,xvda,w",
  'file:/srv/x.iso,hdc:cdrom,r', ]
extra = "console=hvc0 a=[b"
pci = [ '01:00.0' ]
`

func placedOn(cpus ...string) *guest.Placement {
	p := &guest.Placement{CPUMode: guest.CPURange}
	for i, c := range cpus {
		p.VCPUs = append(p.VCPUs, guest.VCPU{ID: guest.VCPUID(i), CPUs: topology.MustParseSet[topology.CPUID](c)})
	}
	return p
}

// Only cpus and cpus_soft change; comments, order and all other bytes stay.
func TestRewrite(t *testing.T) {
	c, err := ParseConfig([]byte(written))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(written, "cpus = [ \"0-1\", # near the disk\n         \"2\" ]", `cpus = "4-5"`, 1) +
		"cpus_soft = \"4-5\"\n"
	if got := string(c.Rewrite(placedOn("4-5", "4-5"))); got != want {
		t.Errorf("rewritten to\n%s\nwant\n%s", got, want)
	}
	if got := string(c.Rewrite(placedOn("4", "5"))); !strings.Contains(got, `cpus = [ "4", "5" ]`) ||
		!strings.Contains(got, `cpus_soft = [ "4", "5" ]`) {
		t.Errorf("exclusive CPUs are written as\n%s", got)
	}
	none := placedOn("4", "5")
	none.CPUMode = guest.CPUNone
	if got := string(c.Rewrite(none)); strings.Contains(got, "cpus =") || strings.Contains(got, "cpus_soft") {
		t.Errorf("without a binding:\n%s", got)
	}
	again, err := ParseConfig(c.Rewrite(placedOn("4-5", "4-5")))
	if err != nil {
		t.Fatal(err)
	}
	if twice := string(again.Rewrite(placedOn("4-5", "4-5"))); twice != want {
		t.Errorf("rewritten twice:\n%s", twice)
	}
}

func TestSpec(t *testing.T) {
	topo := synthetic(t)
	c, err := ParseConfig([]byte(written + "maxvcpus = 3\nmaxmem = 256\npool = 'Pool-1'\n"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Spec(&topo)
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "web" || s.VCPUs != 3 || s.Memory != 256*topology.MiB || s.Limits.Pool != "Pool-1" ||
		s.Limits.CPUs.String() != "0-2" || s.Topology.Mode != guest.TopologyOff {
		t.Errorf("spec is %+v", s)
	}
	for list, want := range map[string]string{"all": "", "nodes:1": "4-7", "0-7,^node:0": "4-7", "0-3,^1": "0,2-3"} {
		c, err := ParseConfig([]byte("name = 'x'\ncpus = \"" + list + "\"\n"))
		if err != nil {
			t.Fatal(err)
		}
		if s, err := c.Spec(&topo); err != nil || s.Limits.CPUs.String() != want {
			t.Errorf("cpus %s: limits %q, error %v; want %q", list, s.Limits.CPUs, err, want)
		}
	}
	for _, text := range []string{"vcpus = 2", "name = 'x'\nvcpus = 0", "name='x'\nmemory = 'much'",
		"name='x'\ncpus = '^0-7'", "name = 'x'\nvcpus = 99999999"} {
		c, err := ParseConfig([]byte(text))
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if _, err := c.Spec(&topo); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

func TestParseConfig_Refuses(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "name", "name = ", "name = \"x", "a = [ 1", "a = [[[[[[[[[[1]]]]]]]]]]",
		"name = \"a\\\"b\"", "name = 'x' y = 2", "<domain/>", "= 2"} {
		if _, err := ParseConfig([]byte(text)); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// Whatever is accepted can be rewritten, is accepted again, and keeps all other settings. Rewriting twice changes
// nothing more.
func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(written))
	f.Add([]byte(virtual))
	f.Add([]byte("cpus='1'\ncpus_soft=[1]\ncpus+='2'"))
	f.Add([]byte("vnuma=[['pnode=0','size=1','vcpus=0','vdistances=10']]\nvnuma=[]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data)
		if err != nil {
			return
		}
		for _, p := range []*guest.Placement{placedOn("1", "2-3"), cellsOn(1, 3)} {
			bound := c.Rewrite(p)
			again, err := ParseConfig(bound)
			if err != nil {
				t.Fatalf("rewritten to %q: %v", bound, err)
			}
			if v, ok := again.get("cpus_soft"); !ok || len(v.list) != 2 {
				t.Fatalf("rewritten to %q: cpus_soft is %+v", bound, v)
			}
			if diff := cmp.Diff(others(c), others(again)); diff != "" {
				t.Fatalf("rewritten to %q: other settings changed:\n%s", bound, diff)
			}
			if twice := again.Rewrite(p); string(twice) != string(bound) {
				t.Fatalf("rewritten to %q, and then to %q", bound, twice)
			}
			if cells, err := again.virtualNodes(); p.Visible && err == nil && cells == nil {
				t.Fatalf("rewritten to %q: no vnuma", bound)
			}
		}
	})
}

// others are the texts of the settings that a placement does not rewrite.
func others(c *Config) (texts []string) {
	for _, s := range c.settings {
		if s.key != "cpus" && s.key != "cpus_soft" && s.key != "vnuma" {
			texts = append(texts, c.text[s.from:s.to])
		}
	}
	return texts
}
