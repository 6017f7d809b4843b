package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/text"
)

// intentUnusable: a recorded intent cannot be read, or contradicts this host or
// the VM's configuration (inventory.CheckIntents).
func intentUnusable(v *view) (found []Finding) {
	for _, g := range v.host.Guests {
		if g.IntentError == "" {
			continue
		}
		f := Finding{
			Severity: Warning, Object: "guest " + g.Name, Evidence: []string{g.IntentError + " (metadata of the VM)"},
			Effect: "Numavisor treats the VM as unmanaged: it gives advice but does not move the VM, and does not " +
				"detect drift",
		}
		name := text.ShellWord(g.Name)
		if g.State == "shutoff" {
			f.Fix = "remove the recorded intent, then bind the VM after its next start"
			f.Command = fmt.Sprintf("virsh metadata %s --uri https://numavisor.dev/xmlns/1 --remove --config", name)
		} else {
			f.Fix = "bind the VM again, which replaces the recorded intent; it keeps running"
			f.Command = "numavisor bind " + name
		}
		found = append(found, f)
	}
	return found
}
