package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// spareFiles are open files in addition to a connection for each daemon.
const spareFiles = 500

// raiseFiles makes sure that this process, and those that it starts, may have a connection for each daemon.
// Programs in Go raise their soft limit themselves, so the hard limit counts.
func raiseFiles(daemons int) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		return fmt.Errorf("reading the limit of open files: %w", err)
	}
	need := uint64(max(0, daemons) + spareFiles)
	if now.Max >= need {
		return nil
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: need, Max: need}); err != nil {
		return fmt.Errorf("%d daemons need %d open files; the limit is %d and cannot be raised: %w; "+
			"run it as root, or with fewer daemons", daemons, need, now.Max, err)
	}
	return nil
}
