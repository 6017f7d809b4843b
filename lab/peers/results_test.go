package peers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestResults_SurviveTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bench.json")
	none, err := Read(path)
	if err != nil || len(none.Runs) != 0 || none.Version != ResultsVersion {
		t.Fatalf("no file: %+v, %v", none, err)
	}
	if err := none.Add(5, Layouts()); err != nil {
		t.Fatal(err)
	}
	none.Runs = []Run{runOf(Numavisor, 5, 1, 2, true), {Layout: "late", Manager: Kernel, Failed: "it did",
		Memory: [][]uint64{{1, 2, 3, 4}, nil}}}
	if err := none.Write(path); err != nil {
		t.Fatal(err)
	}
	again, err := Read(path)
	if diff := cmp.Diff(none, again); err != nil || diff != "" {
		t.Errorf("%v (-written +read):\n%s", err, diff)
	}
	if err := again.Add(5, Layouts()); err != nil || len(again.Layouts) != len(Layouts()) {
		t.Errorf("the same layouts again: %d, %v", len(again.Layouts), err)
	}
}

func TestResults_OfAnotherKindAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ content, want string }{
		"the format before": {`{"layout": {"guests": 3}, "runs": []}`, "version 1, this program reads and writes version 2"},
		"a later format":    {`{"version": 3}`, "version 3"},
		"an unknown field":  {`{"version": 2, "wat": 1}`, "wat"},
		"no JSON":           {`wat`, "invalid"},
	} {
		path := filepath.Join(t.TempDir(), "bench.json")
		if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
	}
}

// A layout of the same name with another definition is refused, not mixed.
func TestResults_OfAnotherDefinitionAreRefused(t *testing.T) {
	var r Results
	if err := r.Add(5, Layouts()); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Layout){
		"layout tight is another there": func(l *Layout) { l.VMs[3].Start = []int{1} },
		"120 s; here":                   func(l *Layout) { l.Name, l.Seconds = "goes-idle", 75 },
	} {
		l := tight()
		change(&l)
		if err := r.Add(5, []Layout{l}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
	if err := r.Add(1, nil); err == nil || !strings.Contains(err.Error(), "windows of 5 s, not 1 s") {
		t.Errorf("other windows: %v", err)
	}
	another := tight()
	another.Name, another.About, another.Seconds = "of my own", "", 30
	if err := r.Add(5, []Layout{another}); err != nil || len(r.Layouts) != len(Layouts())+1 {
		t.Errorf("a layout of another name: %d, %v", len(r.Layouts), err)
	}
}

func TestParseMemory(t *testing.T) {
	got, err := parseMemory("w0: N0 361 MiB N1 0 MiB N3 12 MiB, vCPUs on CPUs 4", 4)
	if diff := cmp.Diff([]uint64{361, 0, 0, 12}, got); err != nil || diff != "" {
		t.Errorf("%v: %s", err, diff)
	}
	for _, bad := range []string{"", "w0: vCPUs on CPUs 4", "w0: N4 1 MiB", "w0: N0 99999999999999999999999 MiB"} {
		if got, err := parseMemory(bad, 4); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}
