package guest

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/numavisor/numavisor/internal/topology"
)

// A number alone could be bytes, KiB as for virsh, or MiB as for virt-install.
func TestParseSpec_RefusesSizesWithoutAUnit(t *testing.T) {
	for text, says := range map[string]string{
		"vcpus: 1\nmemory: 4096": "memory is 4096: give a unit, such as " +
			"4096MiB",
		"vcpus: 1\nmemory: \"4096\"": `memory is "4096": give a unit, such as 4096MiB`,
		"vcpus: 1\nmemory: 1.5": "memory is 1.5: give a unit, such as " +
			"1.5MiB",
		"vcpus: 1\nmemory: 1G\npage_size: 2048": "page_size is 2048: give a unit",
		"topology: {mode: cells, cells: [{vcpus: 1, memory: 1000}]}": "topology.cells[0].memory is 1000: " +
			"give a unit",
		`{"vcpus": 1, "memory": 4096}`:    "memory is 4096: give a unit, such as 4096MiB",
		`{vcpus: 1, memory: 68719476736}`: "memory is 68719476736: give a unit, such as 68719476736B", // YAML
	} {
		if s, err := ParseSpec(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q gives memory %v, error %v; want %q", text, s.Spec.Memory, err, says)
		}
	}
	for _, text := range []string{"vcpus: 1\nmemory: 1G\npage_size: 0",
		`{"vcpus": 1, "memory": "4096B", "page_size": "0"}`} {
		if _, err := ParseSpec(strings.NewReader(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Numavisor writes sizes in JSON as numbers of bytes, and reads what it writes.
func TestParseSpec_ReadsTheJSONThatNumavisorWrites(t *testing.T) {
	want, err := Spec{VCPUs: 2, Memory: 20 * topology.GiB, PageSize: 2 * topology.MiB}.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseSpec(bytes.NewReader(text))
	if err != nil || !cmp.Equal(got.Spec, want) {
		t.Errorf("%s: %v, differs by %s", text, err, cmp.Diff(want, got.Spec))
	}
}

func TestFlags_RefuseSizesWithoutAUnit(t *testing.T) {
	for _, args := range [][]string{{"--memory", "4096"}, {"--page-size", "2048"}, {"--cells", "1:4096"}} {
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		BindFlags(fs)
		if err := fs.Parse(args); err == nil || !strings.Contains(err.Error(), "give a unit") {
			t.Errorf("%v: error %v", args, err)
		}
	}
}
