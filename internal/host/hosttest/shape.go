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

// ownParts are the parts of answers that only one hypervisor can have, and why.
func ownParts() map[string]string {
	return map[string]string{
		`control_domain`:              "dom0 and its memory: KVM has none",
		`cpu_pool|limits\.pool`:       "CPU pools: KVM has none",
		`\.kernel\.`:                  "settings by which a kernel moves memory: Xen's guests are not its processes",
		`basis|\.pid|\.run$|cgroup`:   "a process, or the number of a domain",
		`\.emulator`:                  "emulator threads: a guest of Xen has none on its host",
		`persistent|stored_bindings`:  "stored configurations: xl stores none",
		`memory_s|numatune|soft_pins`: "settings in the form of the hypervisor",
		`preferred`:                   "soft affinity: KVM has none",
		`node_affinity`:               "nodes of further memory: KVM's are in numatune",
		`capabilities\.`:              "what the hypervisor can do",
		`steps?\b|moved|ranges|cells`: "Xen moves no memory of a running guest, and shows no mappings",
		`copied_|trace|\.undo`:        "as above, in the journal",
		`cannot|shortfalls`:           "what was not done: on Xen, moving the memory",
		`^\.gaps|topology\.gaps`:      "what the host does not tell, by name",
		`reclaimable_bytes`:           "memory that the kernel can free: Xen's nodes have none",
		`no_new_vms|machine_types`:    "what a fleet can create: KVM hosts do not name it",
		`shared_storage`:              "whether disks are shared: xl does not tell",
		`^\.id$`:                      "the machine's identity: a lab's kernel may have none",
		`why\.alternatives`:           "other nodes: on Xen, those of the memory are the only ones",
	}
}

// PlaneDifferences names the differences of two answers of the same command, on hosts with different hypervisors, that
// no difference between the hypervisors explains.
func PlaneDifferences(a, b Shape) []string {
	var own []string
	for part := range ownParts() {
		own = append(own, part)
	}
	explained := regexp.MustCompile(strings.Join(own, "|"))
	return slices.DeleteFunc(ShapeDifferences(a, b), func(d string) bool {
		path, _, _ := strings.Cut(d, ":")
		return explained.MatchString(path)
	})
}
