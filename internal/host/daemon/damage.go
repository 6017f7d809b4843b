package daemon

import (
	"fmt"

	"github.com/numavisor/numavisor/internal/inventory"
)

// damage tells of lines of the journal that cannot be read: what they said, the
// daemon does not know, and an operator should.
func (d *Daemon) damage(lines []string) []inventory.Gap {
	if len(lines) == 0 {
		return nil
	}
	for _, line := range lines {
		d.Log.Error("the journal is damaged: a move that was cut short may be lost with it", "folder", d.Records, "line", line)
	}
	why := fmt.Sprintf("%d of its lines in %s cannot be read (the first: %s): where one is of a move that was cut short, nobody takes that up; "+
		"'numavisor list' shows how VMs lie, 'numavisor history' which lines; take them out, and start the daemon anew", len(lines), d.Records, lines[0])
	return []inventory.Gap{{Object: "host", What: "all of the journal", Why: why}}
}
