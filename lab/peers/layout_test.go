package peers

import (
	"encoding/xml"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/topology"
)

func layoutOf(guests int) Layout {
	return Layout{Guests: guests, VCPUs: 2, NodeCPUs: 4, GuestMemory: 448 * topology.MiB, DelayScale: 4}
}

func TestValidateRefusesWhatCannotRun(t *testing.T) {
	for guests := 1; guests <= mostGuests; guests++ {
		if err := layoutOf(guests).Validate(); err != nil {
			t.Errorf("%d guests: %v", guests, err)
		}
	}
	for name, change := range map[string]func(*Layout){
		"no guest":          func(l *Layout) { l.Guests = 0 },
		"seven":             func(l *Layout) { l.Guests = 7 },
		"no room for vCPUs": func(l *Layout) { l.VCPUs = 5 },
		"two share three":   func(l *Layout) { l.Guests, l.NodeCPUs = 4, 3 },
		"no vCPU":           func(l *Layout) { l.VCPUs = 0 },
		"half a MiB":        func(l *Layout) { l.GuestMemory += topology.KiB },
		"delay scale 0":     func(l *Layout) { l.DelayScale = 0 },
	} {
		l := layoutOf(3)
		change(&l)
		if l.Validate() == nil {
			t.Errorf("%s: %+v is accepted", name, l)
		}
	}
}

// Pinned by hand, no two vCPUs share a CPU, none is on node 0, and a guest is on one node.
func TestPins_AreOneNodeForEachGuest(t *testing.T) {
	l, taken := layoutOf(mostGuests), map[string]bool{}
	host := topology.Range[topology.CPUID](0, 3)
	for g := range l.Guests {
		var tune struct {
			VCPU []struct {
				CPUs string `xml:"cpuset,attr"`
			} `xml:"vcpupin"`
			Emulator struct {
				CPUs string `xml:"cpuset,attr"`
			} `xml:"emulatorpin"`
		}
		if err := xml.Unmarshal([]byte(l.pins(g)), &tune); err != nil {
			t.Fatal(err)
		}
		home, err := topology.ParseSet[topology.CPUID](tune.Emulator.CPUs)
		if err != nil || len(tune.VCPU) != l.VCPUs {
			t.Fatalf("guest %d: %d vCPUs, emulator on %q: %v", g, len(tune.VCPU), tune.Emulator.CPUs, err)
		}
		for _, v := range tune.VCPU {
			cpu, err := topology.ParseSet[topology.CPUID](v.CPUs)
			if err != nil || !cpu.SubsetOf(home) || cpu.Intersects(host) || taken[v.CPUs] {
				t.Errorf("guest %d: a vCPU on CPU %s, its home is %v, taken %v: %v", g, v.CPUs, home, taken, err)
			}
			taken[v.CPUs] = true
		}
	}
}

// Every manager's guest is valid XML, and only guests with a worst-case start
// are limited to node 0.
func TestDomains(t *testing.T) {
	for _, m := range Managers() {
		text := m.domain(layoutOf(3), 2)
		var d struct {
			Name string `xml:"name"`
			VCPU struct {
				Placement string `xml:"placement,attr"`
			} `xml:"vcpu"`
			Memory struct {
				Mode    string `xml:"mode,attr"`
				Nodeset string `xml:"nodeset,attr"`
			} `xml:"numatune>memory"`
		}
		if err := xml.Unmarshal([]byte(text), &d); err != nil || d.Name != "w2" {
			t.Errorf("%s: guest %q: %v", m.Name, d.Name, err)
		}
		if bad := d.Memory.Mode == "restrictive" && d.Memory.Nodeset == "0"; bad != m.worstStart {
			t.Errorf("%s: worst-case start: %v, wanted %v", m.Name, bad, m.worstStart)
		}
		if auto := d.VCPU.Placement == "auto"; auto != (m.Name == Auto || m.Name == AutoMass) {
			t.Errorf("%s: vcpu placement %q", m.Name, d.VCPU.Placement)
		}
		found, err := FindManager(m.Name)
		if err != nil || found.Name != m.Name {
			t.Errorf("%s is not found: %v", m.Name, err)
		}
	}
	if _, err := FindManager("unknown"); err == nil || !strings.Contains(err.Error(), Numad) {
		t.Errorf("an unknown manager: %v; the error should list the known ones", err)
	}
}
