package libvirt

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// reach says which hosts have the file system of a path.
type reach int

const (
	reachUnknown reach = iota
	reachLocal         // this host alone
	reachShared        // all hosts that mount it
)

// sharedStorage reports whether other hosts can reach all disks that a domain writes to; nil: not known.
func sharedStorage(root *element, of func(path string) reach) *bool {
	devices := root.child("devices")
	for _, e := range devices.all("filesystem") {
		if e.child("target").attr("dir") != "" {
			return new(bool) // it shares a folder of this host
		}
	}
	known := true
	for _, e := range devices.all("disk") {
		source := e.child("source")
		if source == nil || e.child("readonly") != nil {
			continue
		}
		at := reachUnknown
		switch e.attr("type") {
		case "network":
			at = reachShared
		case "file":
			at = of(source.attr("file"))
		case "dir", "vhostuser", "nvme":
			at = reachLocal
		}
		switch at {
		case reachLocal:
			return new(bool)
		case reachUnknown:
			known = false
		case reachShared:
		}
	}
	if !known {
		return nil
	}
	return new(true)
}

// SharedPaths reports whether other hosts can reach all files of these paths; nil: not known.
func SharedPaths(paths []string) *bool {
	table, known := mountTable(), true
	for _, path := range paths {
		switch table.reach(path) {
		case reachLocal:
			return new(bool)
		case reachUnknown:
			known = false
		case reachShared:
		}
	}
	if !known {
		return nil
	}
	return new(true)
}

// mounts has the type of the file system of each mount point. Asking the file systems themselves
// could wait forever for a server that is gone.
type mounts map[string]string

// mountTable reads the mounts of this process; without them nothing is known.
func mountTable() mounts {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	return parseMounts(string(data))
}

// parseMounts reads /proc/PID/mountinfo (proc_pid_mountinfo(5)). Of several mounts on one point the last one counts.
func parseMounts(text string) mounts {
	out := mounts{}
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if ok && len(fields) > 4 && len(kind) > 0 {
			out[unescape(fields[4])] = kind[0]
		}
	}
	return out
}

// unescape replaces the octal escapes of blanks and backslashes.
func unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

var (
	localKinds = []string{"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "ramfs", "overlay", "f2fs", "zfs",
		"bcachefs"}
	sharedKind = []string{"nfs", "nfs4", "ceph", "fuse.ceph", "fuse.glusterfs", "glusterfs", "gfs2", "ocfs2", "cifs",
		"smb3", "lustre", "gpfs", "beegfs", "afs"}
)

// reach returns which hosts have the file system that a path is on.
func (m mounts) reach(path string) reach {
	if !strings.HasPrefix(path, "/") {
		return reachUnknown
	}
	for at := strings.TrimRight(path, "/"); ; at = at[:strings.LastIndexByte(at, '/')] {
		kind, mounted := m[at]
		if at == "" {
			kind, mounted = m["/"]
		}
		switch {
		case mounted && slices.Contains(localKinds, kind):
			return reachLocal
		case mounted && slices.Contains(sharedKind, kind):
			return reachShared
		case mounted || at == "":
			return reachUnknown
		}
	}
}
