package linux

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrNoCgroupV2 means that the host has no cgroup v2 hierarchy mounted.
var ErrNoCgroupV2 = errors.New(
	"no cgroup v2 hierarchy is mounted; boot with systemd.unified_cgroup_hierarchy=1 or mount one")

// Cgroup is one cgroup v2 group.
type Cgroup struct {
	Mount string // where the hierarchy is mounted: "/sys/fs/cgroup"
	Path  string // below it, from "/": "/machine/qemu-1-web.libvirt-qemu"
}

// CgroupMount returns where cgroup v2 is mounted below the root: at the usual
// place, or next to version 1 on hybrid hosts. On hybrid hosts the controllers
// that version 1 uses are missing from it.
func (r Root) CgroupMount() (string, error) {
	for _, place := range []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"} {
		if mount := r.path(place); IsCgroupV2(mount) {
			return mount, nil
		}
	}
	return "", ErrNoCgroupV2
}

// IsCgroupV2 reports whether a folder is the root of a cgroup v2 hierarchy.
func IsCgroupV2(mount string) bool {
	_, err := os.Stat(filepath.Join(mount, "cgroup.controllers"))
	return err == nil
}

// ParseCgroup reads the path of the v2 group from /proc/PID/cgroup; ok is
// false if the process is in none.
func ParseCgroup(data []byte) (path string, ok bool) {
	for line := range bytes.Lines(data) {
		if rest, found := bytes.CutPrefix(line, []byte("0::/")); found {
			rest = bytes.TrimSuffix(bytes.TrimSuffix(rest, []byte("\n")), []byte(" (deleted)"))
			return "/" + string(rest), true
		}
	}
	return "", false
}

// CgroupOf returns the v2 group of a process or thread. Threads of one
// process may be in different threaded groups; a PID gives its main thread's.
func (r Root) CgroupOf(id int) (Cgroup, error) {
	mount, err := r.CgroupMount()
	if err != nil {
		return Cgroup{}, err
	}
	data, err := readFile(r.proc(id, "cgroup"))
	if err != nil {
		return Cgroup{}, fmt.Errorf("reading the cgroup of process %d: %w", id, err)
	}
	path, ok := ParseCgroup(data)
	if !ok {
		return Cgroup{}, fmt.Errorf("process %d is in no cgroup v2 group (%q)", id, abbreviate(string(data)))
	}
	return Cgroup{mount, path}, nil
}

// Child returns the group of that name below this one.
func (c Cgroup) Child(name string) Cgroup { return Cgroup{c.Mount, filepath.Join(c.Path, name)} }

// Parent returns the group above; that of the root is the root.
func (c Cgroup) Parent() Cgroup { return Cgroup{c.Mount, filepath.Dir(c.Path)} }

// Name is the last part of the path.
func (c Cgroup) Name() string { return filepath.Base(c.Path) }

// Exists reports whether the group exists.
func (c Cgroup) Exists() bool {
	_, err := os.Stat(c.file("cgroup.procs"))
	return err == nil
}

// Children returns the groups directly below, ascending by name.
func (c Cgroup) Children() ([]Cgroup, error) {
	entries, err := os.ReadDir(c.file(""))
	if err != nil {
		return nil, fmt.Errorf("listing the groups below %s: %w", c.Path, err)
	}
	var below []Cgroup
	for _, e := range entries {
		if e.IsDir() {
			below = append(below, c.Child(e.Name()))
		}
	}
	return below, nil
}

func (c Cgroup) file(name string) string { return filepath.Join(c.Mount, c.Path, name) }

func (c Cgroup) read(name string) ([]byte, error) {
	data, err := readFile(c.file(name))
	if err != nil {
		return nil, fmt.Errorf("reading %s of cgroup %s: %w", name, c.Path, err)
	}
	return data, nil
}

// EnableController makes a controller's files appear in this group by enabling
// the controller in every group above. It is no error if it is enabled already.
func (c Cgroup) EnableController(name string) error {
	if c.Path == "/" {
		return nil
	}
	parent := c.Parent()
	if err := parent.EnableController(name); err != nil {
		return err
	}
	enabled, err := parent.read("cgroup.subtree_control")
	if err != nil {
		return err
	}
	if hasWord(enabled, name) {
		return nil
	}
	if err := writeKernelFile(parent.file("cgroup.subtree_control"), "+"+name); err != nil {
		return fmt.Errorf("enabling controller %s below cgroup %s: %w%s", name, parent.Path, err, whyNotEnabled(err))
	}
	return nil
}

func whyNotEnabled(err error) string {
	switch {
	case errors.Is(err, unix.EBUSY):
		return "; the group itself holds processes, which must sit in groups of their own below it"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EINVAL):
		return "; the kernel has no such controller, or cgroup v1 uses it"
	}
	return ""
}

func hasWord(text []byte, word string) bool {
	for field := range bytes.FieldsSeq(text) {
		if string(field) == word {
			return true
		}
	}
	return false
}

// Adopt moves a process with all its threads into the group. If the process has
// pages on nodes outside the group's memory nodes, the kernel migrates them
// within the call, unpaced, and does not report the result: copy first.
func (c Cgroup) Adopt(pid int) error {
	if err := writeKernelFile(c.file("cgroup.procs"), fmt.Sprint(pid)); err != nil {
		return fmt.Errorf("moving process %d into cgroup %s: %w", pid, c.Path, err)
	}
	return nil
}

// Members returns the ids of the processes in the group itself.
func (c Cgroup) Members() ([]int, error) {
	data, err := c.read("cgroup.procs")
	if err != nil {
		return nil, err
	}
	return parseInts(data)
}

// Remove removes a group that holds no process and no other group. It is no
// error if the group is gone already.
func (c Cgroup) Remove() error {
	err := unix.Rmdir(c.file(""))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing cgroup %s: %w", c.Path, err)
	}
	return nil
}
