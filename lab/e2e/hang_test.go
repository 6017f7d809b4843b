package e2e_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/rotate"
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

// The lab's console shows that a VM was reset.
func TestLabSeesAVMThatRestarted(t *testing.T) {
	rotate.Test(t, 2)
	l := boot(t, "square4")
	if err := l.StartGuest(l.ctx, lab.Guest{Name: "restarts"}); err != nil {
		t.Fatal(err)
	}
	if err := l.AwaitGuest(l.ctx, "restarts"); err != nil {
		t.Fatal(err)
	}
	if err := l.CheckVMs(); err != nil {
		t.Errorf("of a VM that has booted once: %v", err)
	}
	l.sh(t, "virsh -q reset restarts")
	l.await(t, "the VM has booted again", func() bool { return errors.Is(l.CheckVMs(), lab.ErrRestarted) })
}
