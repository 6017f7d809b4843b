package diagnose

import "strings"

// numadWithBindings: numad moves whole processes without regard to bindings.
func numadWithBindings(v *view) []Finding {
	names, _ := v.boundNames()
	if !v.host.Kernel.NumadRunning || len(names) == 0 {
		return nil
	}
	return []Finding{{
		Severity: Warning, Object: "host",
		Evidence: []string{"numad is running (processes)", "bound: " + strings.Join(names, ", ")},
		Effect:   "numad re-pins VMs and moves their memory regardless of their binding",
		Fix:      "stop numad",
		Command:  "systemctl disable --now numad",
	}}
}
