package linux

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWriteSetting(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "proc/sys/kernel/numa_balancing")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const balancing = "/proc/sys/kernel/numa_balancing"
	if before, err := Root(root).ReadSetting(balancing); err != nil || before != "1" {
		t.Errorf("before %q, %v", before, err)
	}
	if err := Root(root).WriteSetting(balancing, "0"); err != nil {
		t.Error(err)
	}
	if data, _ := os.ReadFile(file); strings.TrimSpace(string(data)) != "0" {
		t.Errorf("the file contains %q", data)
	}
	for _, path := range []string{"/etc/passwd", "/proc/sys/../../etc/passwd", "relative", "/proc/1/mem"} {
		if err := Root(root).WriteSetting(path, "0"); err == nil {
			t.Errorf("%s was written", path)
		}
		if _, err := Root(root).ReadSetting(path); err == nil {
			t.Errorf("%s was read", path)
		}
	}
}

// The kernel accepts KSM's merge_across_nodes only while no page is merged; KSM
// runs again afterwards.
func TestWriteSetting_KSMAcrossNodes(t *testing.T) {
	root := files(t, map[string]string{fileKSMRun: "1\n", fileKSMAcross: "1\n"})
	if err := root.WriteSetting("/"+fileKSMAcross, "0"); err != nil {
		t.Fatal(err)
	}
	across, err1 := root.ReadSetting("/" + fileKSMAcross)
	run, err2 := root.ReadSetting("/" + fileKSMRun)
	if across != "0" || run != "1" || err1 != nil || err2 != nil {
		t.Errorf("merge_across_nodes %q, run %q; %v, %v", across, run, err1, err2)
	}
}

func TestChosenWordOfASetting(t *testing.T) {
	file := filepath.Join(t.TempDir(), "enabled")
	if err := os.WriteFile(file, []byte("always [madvise] never\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := setting(file); err != nil || got != "madvise" {
		t.Errorf("got %q, %v", got, err)
	}
}
