package linux

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// ExcludeFromNumad tells the numad that runs on this host to leave a process
// alone (numad -x PID, see numad(8)). It lasts until that numad ends.
func ExcludeFromNumad(ctx context.Context, pid int) error {
	out, err := exec.CommandContext(ctx, "numad", "-x", strconv.Itoa(pid)).CombinedOutput()
	if err != nil {
		return fmt.Errorf(
			"telling numad to leave process %d alone: %w: %s; is the numad program of the one that runs installed?",
			pid, err, abbreviate(strings.TrimSpace(string(out))))
	}
	return nil
}
