package main

import (
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/diagnose"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestDoctor_SaysFirstThatTheCheckIsIncomplete(t *testing.T) {
	host := topology.Topology{
		CPUs: []topology.CPU{{ID: 0}, {ID: 1}},
		Nodes: []topology.Node{
			{ID: 0, CPUs: topology.SetOf[topology.CPUID](0, 1)},
		},
	}
	hidden := inventory.UnseenGap(guest.LibvirtQEMU,
		"the libvirt daemon does not answer; start it (systemctl start libvirtd)")
	found := diagnose.Finding{Severity: "warning", Object: inventory.HostRef().String(), Rule: "zone-reclaim"}
	for _, c := range []struct {
		name  string
		saw   diagnosis
		first string
		then  string
	}{
		{"a hypervisor was not seen", diagnosis{Gaps: []inventory.Gap{hidden}},
			"INCOMPLETE: VMs of qemu were not checked: the libvirt daemon does not answer",
			"No problems in the rest (1 node, 2 CPUs)."},
		{"with a finding", diagnosis{Findings: []diagnose.Finding{found}, Gaps: []inventory.Gap{hidden}},
			"INCOMPLETE: VMs of qemu were not checked: the libvirt daemon does not answer", "WARNING: "},
		{"all was seen", diagnosis{}, "No problems found (1 node, 2 CPUs).", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			printDiagnosis(&out, &host, c.saw)
			lines := strings.Split(out.String(), "\n")
			if lines[0] != c.first || !strings.HasPrefix(lines[1], c.then) {
				t.Errorf("printed\n%s", out.String())
			}
		})
	}
}
