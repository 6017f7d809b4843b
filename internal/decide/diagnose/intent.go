package diagnose

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/text"
)

// intentUnusable: a recorded intent that cannot be read, or that this host and
// the VM's configuration contradict (inventory.CheckIntents).
func intentUnusable(v *view) (found []Finding) {
	for _, g := range v.host.Guests {
		if g.IntentError == "" {
			continue
		}
		f := Finding{
			Severity: Warning, Object: "guest " + g.Name, Evidence: []string{g.IntentError + " (metadata of the VM)"},
			Effect: "the VM counts as one that Numavisor did not place: it is advised and not moved, and its drift " +
				"is not seen",
		}
		name := text.ShellWord(g.Name)
		if g.State == "shutoff" {
			f.Fix = "remove the recorded intent; bind the VM once it runs"
			f.Command = fmt.Sprintf("virsh metadata %s --uri https://numavisor.dev/xmlns/1 --remove --config", name)
		} else {
			f.Fix = "bind the VM, which replaces the recorded intent; it keeps running"
			f.Command = "numavisor bind " + name
		}
		found = append(found, f)
	}
	return found
}
