package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/inventory"
)

// Kernel files that make the kernel move, merge or place memory by itself.
const (
	fileBalancing   = "proc/sys/kernel/numa_balancing"
	fileZoneReclaim = "proc/sys/vm/zone_reclaim_mode"
	fileRelease     = "proc/sys/kernel/osrelease"
	fileTHP         = "sys/kernel/mm/transparent_hugepage/enabled"
	fileKSMRun      = "sys/kernel/mm/ksm/run"
	fileKSMAcross   = "sys/kernel/mm/ksm/merge_across_nodes"
	fileKSMShared   = "sys/kernel/mm/ksm/pages_shared"
	fileDemotion    = "sys/kernel/mm/numa/demotion_enabled"
)

// Settings reads the settings by which the kernel moves memory by itself. The
// field of a feature that the kernel was built without stays empty; only a file
// that exists and cannot be read is a gap.
func (r Root) Settings() (inventory.Kernel, []inventory.Gap) {
	var k inventory.Kernel
	var gaps []inventory.Gap
	read := func(file string) string {
		text, err := r.word(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			gaps = append(gaps, unread("/"+file, err.Error()))
		}
		return text
	}
	k.Release = read(fileRelease)
	k.NUMABalancing = read(fileBalancing)
	k.TransparentHugePages = chosen(read(fileTHP))
	k.KSMRun = read(fileKSMRun)
	k.KSMAcrossNodes = read(fileKSMAcross)
	k.ZoneReclaim = read(fileZoneReclaim)
	k.Demotion = read(fileDemotion)
	if text := read(fileKSMShared); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			gaps = append(gaps, unread("/"+fileKSMShared, fmt.Sprintf("%q is not a number", abbreviate(text))))
		}
		k.KSMPagesShared = n
	}
	mount, err := r.CgroupMount()
	k.CgroupV2 = err == nil
	k.Cpusets = r.cpusets(mount)
	k.NumadRunning, err = r.running("numad")
	if err != nil {
		gaps = append(gaps, unread("whether numad runs", err.Error()))
	}
	return k, gaps
}

// cpusets reports whether cgroup v2, mounted there, has the cpuset controller.
// Without a mount it is unknown, unless version 1 has the controller.
func (r Root) cpusets(mount string) *bool {
	var has bool
	if mount == "" {
		if _, err := os.Stat(r.path("sys/fs/cgroup/cpuset")); err != nil {
			return nil
		}
		return &has
	}
	controllers, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
	if err != nil {
		return nil
	}
	has = slices.Contains(strings.Fields(string(controllers)), "cpuset")
	return &has
}

func unread(what, why string) inventory.Gap {
	return inventory.Gap{Kind: inventory.SettingsUnread, Object: inventory.HostRef(), What: what, Why: why}
}

// chosen returns the bracketed word of "always [madvise] never".
func chosen(text string) string {
	for word := range strings.FieldsSeq(text) {
		if inner, ok := strings.CutPrefix(word, "["); ok {
			return strings.TrimSuffix(inner, "]")
		}
	}
	return text
}

// running reports whether a process of that name exists.
func (r Root) running(name string) (bool, error) {
	pids, err := r.programs()
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(pids, func(pid int) bool {
		comm, err := r.word("proc", strconv.Itoa(pid), "comm")
		return err == nil && comm == name
	}), nil
}

// SetKSMAcrossNodes sets whether KSM may merge pages of different nodes. The
// kernel accepts a change only while no page is merged: so SetKSMAcrossNodes
// first unmerges all pages (which needs the memory that merging saved), and
// then restarts KSM as it was. It does nothing if the value is right already.
func (r Root) SetKSMAcrossNodes(across bool) (err error) {
	want := "0"
	if across {
		want = "1"
	}
	have, err := r.word(fileKSMAcross)
	if err != nil {
		return fmt.Errorf("reading KSM's merge_across_nodes: %w", err)
	}
	if have == want {
		return nil
	}
	run, err := r.word(fileKSMRun)
	if err != nil {
		return fmt.Errorf("reading whether KSM runs: %w", err)
	}
	const unmerge = "2"
	if err := r.set(unmerge, fileKSMRun); err != nil {
		return fmt.Errorf("unmerging KSM's pages to set merge_across_nodes to %s: %w; free memory and try again", want,
			errors.Join(err, r.set(run, fileKSMRun)))
	}
	err = r.set(want, fileKSMAcross)
	if err != nil {
		err = fmt.Errorf("setting KSM's merge_across_nodes to %s: %w", want, err)
	}
	if back := r.set(run, fileKSMRun); back != nil {
		err = errors.Join(err, fmt.Errorf("KSM stays stopped; writing %s to /%s: %w", run, fileKSMRun, back))
	}
	return err
}
