package drivers_test

import (
	"os"
	"testing"

	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/labtest"
)

// The drivers' own tests of real system calls and of a real libvirt need
// several nodes: their test programs run inside a lab.
func TestLabDriversOnARealHost(t *testing.T) {
	if os.Getenv("NUMAVISOR_LAB") != "1" {
		t.Skip("boots a NUMA host in QEMU: run with NUMAVISOR_LAB=1, as 'make test' does")
	}
	for _, room := range []string{"linux", "libvirt"} {
		t.Run(room, func(t *testing.T) {
			folder := "../../internal/host/" + room
			program := labtest.Build(t, folder)
			s, err := lab.FindShape("square4")
			if err != nil {
				t.Fatal(err)
			}
			h, err := lab.Boot(t.Context(), lab.Options{Shape: s, Files: map[string]string{"driver-tests": program}, Progress: t.Logf})
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			labtest.Inside(t, h, "driver-tests", folder)
		})
	}
}
