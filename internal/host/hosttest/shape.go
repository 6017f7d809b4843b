package hosttest

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Shape is what a program that reads a JSON document relies on: its keys with the types of their values, such as
// ".guests[].vcpus" with "float64". Keys that are numbers are the same key.
type Shape map[string]string

// null is a value that is not known: it may stand for any type.
const null = "null"

// ShapeOf returns the shape of a JSON document.
func ShapeOf(document []byte) (Shape, error) {
	var v any
	if err := json.Unmarshal(document, &v); err != nil {
		return nil, fmt.Errorf("the shape of %.80q: %w", document, err)
	}
	s := Shape{}
	s.add("", v)
	return s, nil
}

var numberKey = regexp.MustCompile(`^\d+$`)

func (s Shape) add(path string, v any) {
	kind := fmt.Sprintf("%T", v)
	switch v := v.(type) {
	case nil:
		kind = null
	case map[string]any:
		kind = "object"
		for key, one := range v {
			if numberKey.MatchString(key) {
				key = "#"
			}
			s.add(path+"."+key, one)
		}
	case []any:
		kind = "list"
		for _, one := range v {
			s.add(path+"[]", one)
		}
	}
	if was := s[path]; was == "" || was == null {
		s[path] = kind
	}
}

// ShapeDifferences names the keys that only one of two documents has, or has with another type. What is within
// lists and objects that are empty or null in one of them is not compared.
func ShapeDifferences(a, b Shape) (all []string) {
	paths := maps.Clone(a)
	maps.Copy(paths, b)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		if a[path] != b[path] && !a.ends(path) && !b.ends(path) {
			all = append(all, fmt.Sprintf("%s: %q in one document, %q in the other", path, a[path], b[path]))
		}
	}
	return all
}

// ends reports whether the document has no values where the path leads: an empty list or object, or null.
func (s Shape) ends(path string) bool {
	if s[path] == null {
		return true
	}
	for at := path; at != ""; {
		cut := max(strings.LastIndexByte(at, '.'), strings.LastIndex(at, "[]"), 0)
		parent, key := at[:cut], at[cut:]
		if s[parent] == null || s[parent] == "list" && s[parent+"[]"] == "" ||
			s[parent] == "object" && key == ".#" && s[at] == "" {
			return true
		}
		at = parent
	}
	return false
}

// ownParts are the parts of answers that only one hypervisor can have, and why. Each ends a path, or is followed by
// more of it.
func ownParts() []string {
	return []string{
		// Dom0 and its memory: KVM has none.
		`\.control_domain`,
		// CPU pools: KVM has none.
		`\.cpu_pools?`,
		// The same of a VM.
		`\.spec\.limits\.pool`,
		// Settings by which a kernel moves memory: Xen's guests are not its processes.
		`^\.kernel\.[a-z_]+`,
		// A process, or the number of a domain.
		`\.basis\.(pid|run|start_ticks)`,
		`(\.guests\[\]|\.plan)\.pid`,
		`\.guests\[\]\.run`,
		// The cgroup of a process.
		`\.seen\.cgroup`,
		// Emulator threads: a guest of Xen has none on its host.
		`\.emulator(_pin)?`,
		// Stored configurations: xl stores none.
		`\.persistent`,
		`\.stored_bindings?`,
		// How a process maps memory: a guest of Xen is none.
		`\.config\.memory_(shared|source)`,
		// Libvirt's settings of memory.
		`\.numatune(_mode|_nodes)?`,
		// Soft affinity: KVM has none.
		`\.vcpu_soft_pins`,
		`\.threads\[\]\.preferred`,
		// Nodes of further memory: KVM's are in numatune.
		`\.config\.node_affinity`,
		// Cpuset.mems of a process.
		`\.undo\.allowed_nodes`,
		// What the hypervisor can do.
		`\.guests\[\]\.capabilities\.[a-z_]+`,
		// Xen moves no memory of a running guest.
		`\.steps?(\[\])?\.(address|file|misplaced_bytes|mode|nodes|page_size_bytes|parts|prefer|size_bytes)`,
		`\.outcomes\[\]\.moved`,
		// The same in the journal.
		`\.entries\[\]\.(moved_bytes|copied_ns|trace\[\]\.copied_bytes)`,
		// What was not done: on Xen, moving the memory.
		`\.plan\.cannot|\.shortfalls`,
		// What the host does not tell, by name.
		`^(\.topology)?\.gaps`,
		// Memory that the kernel can free: Xen's nodes have none.
		`\.nodes\[\]\.reclaimable_bytes`,
		// What a fleet can create: KVM hosts do not name it.
		`^\.(no_new_vms|machine_types)`,
		// Xen allocates memory only on nodes of vCPUs.
		`^\.near_memory_only`,
		// Whether disks are shared: xl does not tell.
		`\.config\.shared_storage`,
		// The machine's identity: a lab's kernel may have none.
		`^\.id`,
		// Other nodes: on Xen, those of the memory are the only ones.
		`^\.why\.alternatives`,
	}
}

// PlaneDifferences names the differences of two answers of the same command, on hosts with different hypervisors, that
// no difference between the hypervisors explains.
func PlaneDifferences(a, b Shape) []string {
	explained := regexp.MustCompile(`(` + strings.Join(ownParts(), "|") + `)($|\.|\[)`)
	return slices.DeleteFunc(ShapeDifferences(a, b), func(d string) bool {
		path, _, _ := strings.Cut(d, ":")
		return explained.MatchString(path)
	})
}
