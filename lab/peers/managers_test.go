package peers

import (
	"os/exec"
	"strings"
	"testing"
)

// A syntax error in a script would otherwise show only after the minutes that a
// lab takes.
func TestScriptsAreShell(t *testing.T) {
	smeared := Layout{VMs: times(1, VM{VCPUs: 2, Memory: 1 << 28, Start: []int{0, 2}})}.completed()
	scripts := map[string]string{"release": smeared.release(0), "scatter": smeared.scatter(0), "locations": locations,
		"moved": moved, "with process": withProcess + "true"}
	for _, m := range Managers() {
		for when, script := range map[string]string{"before": m.before, "created": m.created,
			"released": m.released, "ready": m.ready, "after": m.after} {
			scripts[m.Name+" "+when] = script
		}
	}
	for name, script := range scripts {
		check := exec.Command("bash", "-n")
		check.Stdin = strings.NewReader(script)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

// The daemon's policy names every guest, in mode auto: unmanaged guests would otherwise only get advice.
func TestThePolicyNamesEveryGuest(t *testing.T) {
	policy, _, _ := strings.Cut(startDaemon, " > /run/bench-policy.yaml")
	out, err := exec.Command("bash", "-c", policy, "bench", "w0", "w1").CombinedOutput()
	want := "balance:\n  mode: auto\n  degraded_for: 500ms\n  min_cpu_demand: 0.3\n  guests:\n    w0: auto\n    w1: auto\n"
	if err != nil || string(out) != want {
		t.Errorf("%v: got %q, want %q", err, out, want)
	}
}

// Managers that repair have the same start, and only kernel balancing has the
// kernel's balancing enabled.
func TestManagers_HaveTheSameStart(t *testing.T) {
	bad := ""
	for _, m := range Managers() {
		if m.worstStart {
			bad += m.Name + " "
		}
		if m.balancing != (m.Name == Kernel) {
			t.Errorf("%s: kernel balancing %v", m.Name, m.balancing)
		}
		if m.worstStart && (m.tuning != nil || m.placement != "" || m.oneByOne) {
			t.Errorf("%s has a worst-case start that differs from the others", m.Name)
		}
	}
	if bad != "none kernel numad numavisor " {
		t.Errorf("managers with a worst-case start: %s", bad)
	}
}
