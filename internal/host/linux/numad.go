package linux

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// ExcludeFromNumad makes the numad that runs on this host ignore a process
// (numad -x PID, see numad(8)). The exclusion lasts until that numad ends.
func ExcludeFromNumad(ctx context.Context, pid int) error {
	out, err := exec.CommandContext(ctx, "numad", "-x", strconv.Itoa(pid)).CombinedOutput()
	if err != nil {
		return fmt.Errorf(
			"excluding process %d from numad: %w: %s; check that the installed numad program is the one that runs",
			pid, err, abbreviate(strings.TrimSpace(string(out))))
	}
	return nil
}
