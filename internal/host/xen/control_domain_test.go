package xen

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/diagnose"
)

func TestMakesRoom(t *testing.T) {
	for name, c := range map[string]struct {
		settings, booted  string
		balloons, noClaim bool
	}{
		"by default":               {"", "", true, false},
		"fixed memory":             {"", "dom0_mem=2G,max:2G", false, false},
		"auto":                     {`autoballoon="auto"`, "dom0_mem=2G", false, false},
		"on in spite of dom0_mem":  {`autoballoon="on"`, "dom0_mem=2G", true, false},
		"off":                      {"# comment\nautoballoon=\"off\"\nclaim_mode=1", "", false, false},
		"numbers, claims off":      {"autoballoon=0\nclaim_mode=0", "", false, true},
		"settings that are broken": {"autoballoon = [", "dom0_mem=2G", false, false},
	} {
		balloons, noClaim := makesRoom([]byte(c.settings), strings.Fields(c.booted))
		if balloons != c.balloons || noClaim != c.noClaim {
			t.Errorf("%s: balloons %v, claims off %v; want %v, %v", name, balloons, noClaim, c.balloons, c.noClaim)
		}
	}
}

// The doctor finds on a Xen host what its tools report.
func TestDoctor_OnXen(t *testing.T) {
	h, s := joined(t)
	d, ok := h.Control.(*Driver)
	if !ok {
		t.Fatal("no Xen driver")
	}
	d.settings = filepath.Join(t.TempDir(), "xl.conf")
	s.add("vm", 1, "0-3", 1)
	rules := func() string {
		inv, err := h.Observe(t.Context())
		if err != nil || len(inv.Gaps) > 0 {
			t.Fatalf("error %v, gaps %v", err, inv.Gaps)
		}
		var all []string
		for _, f := range diagnose.Run(&inv) {
			all = append(all, f.Rule)
		}
		return strings.Join(all, " ")
	}
	if got := rules(); !strings.Contains(got, "control-domain-balloons") || !strings.Contains(got, "memory-far") ||
		!strings.Contains(got, "control-domain-unpinned") {
		t.Errorf("findings are %q", got)
	}
	s.booted = "dom0_mem=1G"
	s.domains[0].hard[0], s.domains[0].hard[1] = s.topology.Nodes[0].CPUs, s.topology.Nodes[0].CPUs
	if err := os.WriteFile(d.settings, []byte("claim_mode=0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := rules(); !strings.Contains(got, "claims-off") || strings.Contains(got, "control-domain-") {
		t.Errorf("findings are %q, want claims-off and none about dom0", got)
	}
}
