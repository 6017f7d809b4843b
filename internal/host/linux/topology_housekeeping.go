package linux

import (
	"path"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

const cgroupFolder = "sys/fs/cgroup"

// housekeeping returns the CPUs that guests must not get:
//
//   - Operators set CPUs aside for guests with isolcpus= and nohz_full=; if
//     there are any, all others are housekeeping, as the kernel calls them too.
//   - A cpuset partition (cgroup v2, cpuset.cpus.partition root or isolated)
//     takes its CPUs away from everything outside it. Below machine.slice or
//     machine it serves guests; elsewhere something else owns it.
func (t *tree) housekeeping(cpus []topology.SeenCPU) topology.CPUSet {
	all := make([]topology.CPUID, 0, len(cpus))
	for _, c := range cpus {
		all = append(all, c.ID)
	}
	online := topology.SetOf(all...)
	var rest topology.CPUSet
	aside := t.bootList("isolated").Union(t.bootList("nohz_full")).Intersect(online)
	if !aside.IsEmpty() {
		rest = online.Minus(aside)
	}
	return rest.Union(t.partitions())
}

// bootList reads a list of the kernel's command line; older kernels print
// "(null)" for none.
func (t *tree) bootList(name string) topology.CPUSet {
	text, _ := t.text(cpuFolder + "/" + name)
	if strings.Trim(text, "() ") == "null" {
		return topology.CPUSet{}
	}
	set, err := topology.ParseSet[topology.CPUID](text)
	if err != nil {
		t.gap("%s/%s: %v", cpuFolder, name, err)
	}
	return set
}

// Groups of a busy host number some thousands; only those with the cpuset
// controller are entered.
const (
	maxGroups     = 20000
	maxGroupDepth = 32
)

// partitions returns the CPUs of all cpuset partitions that do not serve guests.
func (t *tree) partitions() topology.CPUSet {
	var owned topology.CPUSet
	folders := []string{cgroupFolder}
	for visited := 0; len(folders) > 0; visited++ {
		if visited == maxGroups {
			t.gap("%s: more than %d groups; cpuset partitions in the others are unknown", cgroupFolder, maxGroups)
			break
		}
		folder := folders[0]
		folders = folders[1:]
		if folder != cgroupFolder {
			state, enabled := t.text(folder + "/cpuset.cpus.partition")
			if !enabled {
				continue
			}
			if state == "root" || state == "isolated" {
				cpus, ok := t.cpuList(folder + "/cpuset.cpus.effective")
				if !ok {
					t.gap("%s: the CPUs of this cpuset partition cannot be read", folder)
				}
				owned = owned.Union(cpus)
			}
		}
		if strings.Count(folder, "/") > maxGroupDepth {
			continue
		}
		folders = append(folders, t.subgroups(folder)...)
	}
	return owned
}

func (t *tree) subgroups(folder string) []string {
	var groups []string
	for _, name := range t.names(folder) {
		if folder == cgroupFolder && (name == "machine.slice" || name == "machine") {
			continue
		}
		child := path.Join(folder, name)
		if info, err := t.root.Lstat(child); err == nil && info.IsDir() {
			groups = append(groups, child)
		}
	}
	return groups
}
