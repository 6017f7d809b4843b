package fleet

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// longestDowntime is the largest downtime limit that QEMU accepts, in milliseconds.
const longestDowntime = 2_000_000

// MigrationOptions are how a live migration copies memory and disks. The zero value copies the memory
// while the VM runs on the source, with the hypervisor's downtime limit, and no disks.
type MigrationOptions struct {
	// MaxDowntime is for how long, in milliseconds, the VM may stop while the last memory is copied. 0: the
	// hypervisor's default.
	MaxDowntime int `json:"max_downtime_ms,omitempty" minimum:"1" maximum:"2000000" doc:"longest stop of the VM"`
	// PostCopy lets the VM run on the target before all of its memory is there, so that the migration
	// always ends. If the connection breaks then, the VM's memory is lost.
	PostCopy bool `json:"post_copy,omitempty" doc:"run on the target before all memory is there"`
	// CopyStorage copies the disks that the target does not share.
	CopyStorage bool `json:"copy_storage,omitempty" doc:"copy the disks that the target does not share"`
}

// Validate refuses values and combinations that no host carries out as asked for.
func (o MigrationOptions) Validate() error {
	switch {
	case o.MaxDowntime < 0 || o.MaxDowntime > longestDowntime:
		return fmt.Errorf("max_downtime_ms: %d: allowed is 1 to %d", o.MaxDowntime, longestDowntime)
	case o.PostCopy && o.MaxDowntime != 0:
		return errors.New("max_downtime_ms with post_copy: post-copy moves the VM before the limit is reached; " +
			"leave one of them out")
	case o.PostCopy && o.CopyStorage:
		return errors.New("copy_storage with post_copy: a broken connection would leave memory and disks divided " +
			"between the hosts; leave one of them out")
	}
	return nil
}

// Downtime returns MaxDowntime as a duration.
func (o MigrationOptions) Downtime() time.Duration {
	return time.Duration(o.MaxDowntime) * time.Millisecond
}

// String returns the options in words; empty: none is set.
func (o MigrationOptions) String() string {
	var parts []string
	if o.MaxDowntime != 0 {
		parts = append(parts, "stops for at most "+o.Downtime().String())
	}
	if o.PostCopy {
		parts = append(parts, "post-copy")
	}
	if o.CopyStorage {
		parts = append(parts, "copies its disks")
	}
	return strings.Join(parts, ", ")
}
