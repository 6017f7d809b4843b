package drivers_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/numavisor/numavisor/lab"
)

// The drivers' own tests of real system calls and of a real libvirt need
// several nodes: their test programs run inside a lab.
func TestLabDriversOnARealHost(t *testing.T) {
	if os.Getenv("NUMAVISOR_LAB") != "1" {
		t.Skip("boots a NUMA host in QEMU: run with NUMAVISOR_LAB=1, as 'make test' does")
	}
	for _, room := range []string{"linux", "libvirt"} {
		t.Run(room, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), room+".test")
			build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", program, "../../internal/host/"+room)
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("building the tests: %v\n%s", err, out)
			}
			s, err := lab.FindShape("square4")
			if err != nil {
				t.Fatal(err)
			}
			h, err := lab.Boot(t.Context(), lab.Options{Shape: s, Files: map[string]string{"driver-tests": program}, Progress: t.Logf})
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			status, err := h.Run(t.Context(), []string{"env", "NUMAVISOR_LAB_INSIDE=1", "driver-tests", "-test.v", "-test.run", "Lab"}, os.Stdout, os.Stderr)
			if err != nil || status != 0 {
				t.Errorf("the tests of %s fail on a real multi-node host: status %d, %v", room, status, err)
			}
		})
	}
}
