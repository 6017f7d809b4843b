package linux

import (
	"path"
	"strconv"

	"github.com/numavisor/numavisor/internal/topology"
)

const cpuFolder = "sys/devices/system/cpu"

// cpus reads /sys/devices/system/cpu: the online CPUs with their place, and the
// offline CPUs.
func (t *tree) cpus() (seen []topology.SeenCPU, offline topology.CPUSet) {
	var ids []topology.CPUID
	for _, id := range t.numbered(cpuFolder, "cpu") {
		ids = append(ids, topology.CPUID(id))
	}
	present := topology.SetOf(ids...)
	online, found := t.cpuList(cpuFolder + "/online")
	if !found {
		online = t.switchedOn(present)
	}
	if ghosts := online.Minus(present); !ghosts.IsEmpty() {
		t.gap("%s/online names CPUs %s, which have no folder there; they are left out", cpuFolder, ghosts)
		online = online.Intersect(present)
	}
	l3 := map[topology.CPUID]topology.CPUSet{}
	for id := range online.All() {
		c := t.cpu(id)
		if _, known := l3[id]; !known {
			t.readL3(id, l3)
		}
		c.L3 = l3[id]
		seen = append(seen, c)
	}
	return seen, present.Minus(online)
}

// switchedOn reads each CPU's own file where the kernel has no list of online
// CPUs: CPU 0 often has no such file.
func (t *tree) switchedOn(present topology.CPUSet) topology.CPUSet {
	var on []topology.CPUID
	for id := range present.All() {
		if v, found := t.number(cpuPath(id, "online")); !found || v != 0 {
			on = append(on, id)
		}
	}
	return topology.SetOf(on...)
}

// cpu reads cpuN/topology. Dies and cores repeat in each socket.
func (t *tree) cpu(id topology.CPUID) topology.SeenCPU {
	part := func(name string) int {
		if v, ok := t.number(cpuPath(id, "topology", name)); ok {
			return v
		}
		return -1
	}
	c := topology.SeenCPU{ID: id, Socket: part("physical_package_id"), Die: part("die_id"), Core: part("core_id")}
	c.Siblings, _ = t.cpuList(
		cpuPath(id, "topology", "core_cpus_list"), cpuPath(id, "topology", "thread_siblings_list"),
		cpuPath(id, "topology", "thread_siblings"))
	return c
}

// readL3 finds the CPUs that share the level 3 cache of a CPU, in cpuN/cache,
// for all of them at once: a big host has many such files.
func (t *tree) readL3(id topology.CPUID, l3 map[topology.CPUID]topology.CPUSet) {
	const usual = 3 // L1 data, L1 instruction, L2, L3
	indexes := []int{usual}
	if level, ok := t.number(cpuPath(id, "cache/index3/level")); !ok || level != 3 {
		indexes = t.numbered(cpuPath(id, "cache"), "index")
	}
	for _, i := range indexes {
		folder := cpuPath(id, "cache", "index"+strconv.Itoa(i))
		if level, ok := t.number(path.Join(folder, "level")); !ok || level != 3 {
			continue
		}
		shared, ok := t.cpuList(path.Join(folder, "shared_cpu_list"), path.Join(folder, "shared_cpu_map"))
		if !ok || !shared.Contains(id) {
			continue
		}
		for sharer := range shared.All() {
			if _, known := l3[sharer]; !known {
				l3[sharer] = shared
			}
		}
		return
	}
}

func cpuPath(id topology.CPUID, elements ...string) string {
	return path.Join(append([]string{cpuFolder, "cpu" + strconv.Itoa(int(id))}, elements...)...)
}
