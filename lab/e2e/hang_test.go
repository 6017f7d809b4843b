package e2e_test

import (
	"strings"
	"testing"
)

// What a test prints and checks when a command in its lab hangs works in a lab
// that is well.
func TestLabExplainsAHang(t *testing.T) {
	l := boot(t, "square4")
	if err := l.CheckCPUs(t.Context()); err != nil {
		t.Errorf("CPUs of a lab that is well: %v", err)
	}
	if waits := l.Stacks(t.Context()); !strings.Contains(waits, "comm:libvirtd") || !strings.Contains(waits, "wchan:") {
		t.Errorf("the waits of libvirtd's threads are missing:\n%s", waits)
	}
}
