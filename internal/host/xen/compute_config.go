package xen

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// computeConfig writes the xl configuration of a running domain from `xl list -l`, without affinities, placement and
// UUID. xl has no configuration for a running domain in the form that `xl migrate -C` reads. Whatever this function
// does not know is an error: the VM would lose it. So devices (disks, network cards) and VMs with firmware (hvm) need
// the operator's file.
func computeConfig(out []byte) ([]byte, error) {
	var domains []struct {
		Config struct {
			Create map[string]json.RawMessage `json:"c_info"`
			Build  map[string]json.RawMessage `json:"b_info"`
		} `json:"config"`
	}
	var rest []struct {
		Config map[string]json.RawMessage `json:"config"`
	}
	if err := errors.Join(json.Unmarshal(out, &domains), json.Unmarshal(out, &rest)); err != nil {
		return nil, fmt.Errorf("xl list -l: %w", err)
	}
	if len(domains) != 1 {
		return nil, fmt.Errorf("xl list -l: %d domains, not 1", len(domains))
	}
	w := configWriter{}
	w.all(domains[0].Config.Create, createKeys)
	w.all(domains[0].Config.Build, buildKeys)
	delete(rest[0].Config, "c_info")
	delete(rest[0].Config, "b_info")
	w.all(rest[0].Config, eventKeys)
	return []byte(w.text.String()), w.err
}

// configWriter collects settings; err is the first one that it does not know.
type configWriter struct {
	text strings.Builder
	err  error
}

// translate writes a value of libxl's JSON as settings.
type translate func(w *configWriter, key string, value json.RawMessage) error

// all translates an object in the order of its keys.
func (w *configWriter) all(object map[string]json.RawMessage, known map[string]translate) {
	for _, key := range slices.Sorted(maps.Keys(object)) {
		write, ok := known[key]
		err := fmt.Errorf("its configuration has %s, which cannot be written again", key)
		if ok {
			err = write(w, key, object[key])
		}
		if err != nil && w.err == nil {
			w.err = err
		}
	}
}

// unsafe is what a text of an xl configuration cannot have.
const unsafe = "\"\\\n\r"

// word writes a text under a key.
func word(name string) translate {
	return func(w *configWriter, key string, value json.RawMessage) error {
		var text string
		if err := json.Unmarshal(value, &text); err != nil || strings.ContainsAny(text, unsafe) {
			return fmt.Errorf("%s: %.80q cannot be written again", key, value)
		}
		fmt.Fprintf(&w.text, "%s = \"%s\"\n", name, text)
		return nil
	}
}

// action writes what happens when the domain ends: libxl's names have underscores where xl's have hyphens.
func action(w *configWriter, key string, value json.RawMessage) error {
	return word(key)(w, key, bytes.ReplaceAll(value, []byte("_"), []byte("-")))
}

// count writes a number, divided.
func count(name string, by uint64) translate {
	return func(w *configWriter, key string, value json.RawMessage) error {
		var n uint64
		if err := json.Unmarshal(value, &n); err != nil || n == 0 || n%by != 0 {
			return fmt.Errorf("%s: %.80q cannot be written again", key, value)
		}
		fmt.Fprintf(&w.text, "%s = %d\n", name, n/by)
		return nil
	}
}

// only accepts some values, which are the default, and writes nothing.
func only(values ...string) translate {
	return func(_ *configWriter, key string, value json.RawMessage) error {
		var compact bytes.Buffer
		if err := json.Compact(&compact, value); err != nil || !slices.Contains(values, compact.String()) {
			return fmt.Errorf("%s: %.80q cannot be written again", key, value)
		}
		return nil
	}
}

func skip(*configWriter, string, json.RawMessage) error { return nil }

var createKeys = map[string]translate{
	"type": word("type"), "name": word("name"), "uuid": skip, "domid": skip, "run_hotplug_scripts": only(`"True"`),
	"pool_name": word("pool"),
}

const kibOfMib = 1024

var buildKeys = map[string]translate{
	"max_vcpus": count("maxvcpus", 1), "avail_vcpus": available,
	"vcpu_hard_affinity": skip, "vcpu_soft_affinity": skip, "numa_placement": skip, // the placement replaces them
	"max_memkb": count("maxmem", kibOfMib), "target_memkb": count("memory", kibOfMib), "video_memkb": only("0"),
	"sched_params": schedule, "claim_mode": skip,
	"kernel": word("kernel"), "ramdisk": word("ramdisk"), "cmdline": word("cmdline"),
	"type.pvh": only("{}"), "type.pv": only("{}"), "arch_arm": only("{}"),
	"arch_x86": relaxed,
}

// relaxed writes whether the domain may read registers that Xen does not emulate. libxl allows it each domain that has
// arrived by a migration (libxl, msr_relaxed).
func relaxed(w *configWriter, key string, value json.RawMessage) error {
	const allowed = `{"msr_relaxed":"True"}`
	if err := only("{}", `{"msr_relaxed":"False"}`, allowed)(w, key, value); err != nil {
		return err
	}
	if strings.Contains(string(value), "True") {
		w.text.WriteString("msr_relaxed = 1\n")
	}
	return nil
}

var eventKeys = map[string]translate{
	"on_poweroff": action, "on_reboot": action, "on_watchdog": action, "on_crash": action, "on_soft_reset": action,
}

// available writes how many vCPUs are online: xl brings the first ones online.
func available(w *configWriter, key string, value json.RawMessage) error {
	var online []int
	if err := json.Unmarshal(value, &online); err != nil || len(online) == 0 {
		return fmt.Errorf("%s: %.80q cannot be written again", key, value)
	}
	for i, v := range online {
		if v != i {
			return fmt.Errorf("%s: vCPU %d is online and vCPU %d is not", key, v, i)
		}
	}
	fmt.Fprintf(&w.text, "vcpus = %d\n", len(online))
	return nil
}

// schedule writes weight and cap of the credit schedulers.
func schedule(w *configWriter, key string, value json.RawMessage) error {
	var s map[string]json.RawMessage
	if err := json.Unmarshal(value, &s); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	for name, as := range map[string]string{"weight": "cpu_weight", "cap": "cap"} {
		var n int
		if raw, ok := s[name]; ok {
			if err := json.Unmarshal(raw, &n); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			if n > 0 {
				fmt.Fprintf(&w.text, "%s = %d\n", as, n)
			}
		}
		delete(s, name)
	}
	delete(s, "sched")
	if len(s) > 0 {
		return fmt.Errorf("%s: %.80q cannot be written again", key, value)
	}
	return nil
}
