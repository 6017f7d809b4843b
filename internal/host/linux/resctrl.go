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

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/topology"
)

// Reasons why memory bandwidth cannot be monitored (at all, or for one more
// guest).
var (
	ErrNoResctrl = errors.New(
		"resctrl is not mounted; if the processor monitors memory bandwidth, 'mount -t resctrl resctrl " +
			"/sys/fs/resctrl' makes it available",
	)
	ErrNoMBM  = errors.New("this processor or kernel does not monitor both total and local memory bandwidth")
	ErrNoRMID = errors.New("all monitoring ids of the processor are in use")
	// ErrNoBandwidth means that the kernel has no figure at present: it writes
	// Unavailable, Error or Unassigned instead.
	ErrNoBandwidth = errors.New("the kernel reports no figure")
)

// monitorPrefix begins the names of our monitoring groups.
const monitorPrefix = "numavisor-"

// Resctrl is the kernel's interface to resource monitoring of processors
// (/sys/fs/resctrl). Numavisor reads it directly and not through a library: it
// needs only to make a group, to put threads in, and to read two numbers.
type Resctrl struct {
	root   Root
	folder string
	// Mkdir and Rmdir make and remove a group. The kernel fills a new group's
	// folder; a test's imitation fills it here.
	Mkdir, Rmdir func(folder string) error
}

// Resctrl finds resctrl with memory bandwidth monitoring.
func (r Root) Resctrl() (Resctrl, error) {
	c := Resctrl{root: r, folder: r.path("sys/fs/resctrl"), Rmdir: unix.Rmdir}
	c.Mkdir = func(folder string) error { return os.Mkdir(folder, 0o755) }
	data, err := os.ReadFile(filepath.Join(c.folder, "info/L3_MON/mon_features"))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(c.folder, "info")); err == nil {
			return c, ErrNoMBM
		}
		return c, ErrNoResctrl
	}
	if err != nil {
		return c, fmt.Errorf("reading what resctrl monitors: %w", err)
	}
	if !hasWord(data, "mbm_total_bytes") || !hasWord(data, "mbm_local_bytes") {
		return c, ErrNoMBM
	}
	return c, nil
}

// RemoveStale removes monitoring groups that an earlier run of Numavisor left
// behind.
func (c Resctrl) RemoveStale() error {
	var errs []error
	for _, pattern := range []string{"mon_groups/" + monitorPrefix + "*", "*/mon_groups/" + monitorPrefix + "*"} {
		folders, err := filepath.Glob(filepath.Join(c.folder, pattern))
		errs = append(errs, err)
		for _, f := range folders {
			errs = append(errs, c.remove(f))
		}
	}
	return errors.Join(errs...)
}

func (c Resctrl) remove(folder string) error {
	if err := c.Rmdir(folder); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the monitoring group %s: %w", folder, err)
	}
	return nil
}

// ParseResctrlGroups reads /proc/PID/cpu_resctrl_groups: the control group of a
// thread ("" is the default one), and its monitoring group ("" for none).
func ParseResctrlGroups(data []byte) (control, monitor string, err error) {
	seen := false
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		switch key {
		case "res":
			control, seen = strings.TrimPrefix(value, "/"), true
		case "mon":
			monitor = value
		}
	}
	if !seen || strings.Contains(control, "..") {
		return "", "", fmt.Errorf("cpu_resctrl_groups: %q names no control group", abbreviate(string(data)))
	}
	return control, monitor, nil
}

// GroupsOf returns the groups of a thread. Kernels before 5.6, or without
// CONFIG_PROC_CPU_RESCTRL, do not report them: GroupsOf then returns the
// default groups.
func (c Resctrl) GroupsOf(tid int) (control, monitor string, err error) {
	data, err := os.ReadFile(c.root.proc(tid, "cpu_resctrl_groups"))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(c.root.proc(tid)); err == nil {
			return "", "", nil
		}
	}
	if err != nil {
		return "", "", fmt.Errorf("reading the resctrl groups of thread %d: %w", tid, err)
	}
	return ParseResctrlGroups(data)
}

// Monitor is a monitoring group made by Numavisor.
type Monitor struct {
	resctrl Resctrl
	folder  string
	Control string // its control group
	Domains []MonitorDomain
}

// MonitorDomain is a Monitor's figures for one cache domain: bytes between the
// cache and memory since a fixed time, in all and to memory local to the cache.
type MonitorDomain struct {
	// Cache is the kernel's number of the L3 cache; Node is the node where the
	// hardware divides the cache's domain by node (sub-NUMA clustering), else NoNode.
	Cache        int
	Node         topology.NodeID
	Total, Local *CachedFile
}

// Monitor makes a monitoring group with this id in a control group. Its error
// is ErrNoRMID where the processor has no free monitoring id.
func (c Resctrl) Monitor(k *FileCache, control string, id int) (*Monitor, error) {
	m := &Monitor{
		resctrl: c,
		Control: control,
		folder:  filepath.Join(c.folder, control, "mon_groups", monitorPrefix+strconv.Itoa(id)),
	}
	err := c.Mkdir(m.folder)
	switch {
	case errors.Is(err, unix.ENOSPC),
		errors.Is(err, unix.EBUSY): // EBUSY: a freed id stays unusable until its cache lines are gone
		return nil, fmt.Errorf("%w (%w)", ErrNoRMID, err)
	case err != nil && !errors.Is(err, fs.ErrExist):
		return nil, fmt.Errorf("making a monitoring group: %w", err)
	}
	if err := m.findDomains(k); err != nil {
		return nil, errors.Join(err, m.Remove())
	}
	return m, nil
}

// findDomains lists mon_data/mon_L3_00, or where there are any, the
// mon_sub_L3_01 below it, which are one for each node.
func (m *Monitor) findDomains(k *FileCache) error {
	folders, err := filepath.Glob(filepath.Join(m.folder, "mon_data/mon_L3_*"))
	if err != nil {
		return err
	}
	for _, folder := range folders {
		cache, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(folder), "mon_L3_"))
		if err != nil {
			continue
		}
		parts, err := filepath.Glob(filepath.Join(folder, "mon_sub_L3_*"))
		if err != nil {
			return err
		}
		for _, part := range parts {
			if node, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(part), "mon_sub_L3_")); err == nil {
				m.add(k, part, cache, topology.NodeID(node))
			}
		}
		if len(parts) == 0 {
			m.add(k, folder, cache, topology.NoNode)
		}
	}
	if len(m.Domains) == 0 {
		return fmt.Errorf("%s: %w", m.folder, ErrNoMBM)
	}
	return nil
}

func (m *Monitor) add(k *FileCache, folder string, cache int, node topology.NodeID) {
	m.Domains = append(
		m.Domains,
		MonitorDomain{cache, node, k.at(filepath.Join(folder, "mbm_total_bytes")),
			k.at(filepath.Join(folder, "mbm_local_bytes"))},
	)
}

// Add moves a thread into the group, out of its former group.
func (m *Monitor) Add(tid int) error {
	if err := writeKernelFile(filepath.Join(m.folder, "tasks"), strconv.Itoa(tid)); err != nil {
		return fmt.Errorf("monitoring thread %d: %w", tid, err)
	}
	return nil
}

// Remove closes the group's files and removes it; its threads go back to the group above.
func (m *Monitor) Remove() error {
	for _, d := range m.Domains {
		d.Total.Close()
		d.Local.Close()
	}
	return m.resctrl.remove(m.folder)
}

// Ours reports whether Numavisor made the monitoring group of that name.
func (c Resctrl) Ours(monitor string) bool { return strings.HasPrefix(monitor, monitorPrefix) }

// ParseBandwidth reads mbm_total_bytes or mbm_local_bytes. Its error is
// ErrNoBandwidth where the kernel has no figure.
func ParseBandwidth(data []byte) (uint64, error) {
	field, _ := nextField(data)
	n, ok := digits(field)
	if ok {
		return n, nil
	}
	if slices.Contains([]string{"Unavailable", "Error", "Unassigned"}, string(field)) {
		return 0, fmt.Errorf("%w but %q", ErrNoBandwidth, field)
	}
	return 0, fmt.Errorf("%q is not a number of bytes", abbreviate(string(data)))
}

// CacheID returns the kernel's number of the L3 cache that a CPU uses, by
// which resctrl names its domains (/sys/devices/system/cpu/cpuN/cache/indexM/id).
func (r Root) CacheID(cpu topology.CPUID) (int, error) {
	levels, err := filepath.Glob(r.path(cpuPath(cpu, "cache", "index*", "level")))
	if err != nil {
		return 0, err
	}
	for _, level := range levels {
		data, err := os.ReadFile(level)
		if err != nil || strings.TrimSpace(string(data)) != "3" {
			continue
		}
		data, err = os.ReadFile(filepath.Join(filepath.Dir(level), "id"))
		if err != nil {
			return 0, fmt.Errorf("the number of the L3 cache of CPU %d: %w", cpu, err)
		}
		return strconv.Atoi(strings.TrimSpace(string(data)))
	}
	return 0, fmt.Errorf("CPU %d has no L3 cache", cpu)
}
