package lab

import (
	"errors"
	"fmt"
	"regexp"
)

// ErrRestarted means that a VM of the lab restarted. Now and then one does so while it works, and its kernel reports no
// panic; the cause is not proven. It counts as a fault of the emulator, because it also happens when nothing moves the
// VM. The lab cannot tell it from a reset by the test.
var ErrRestarted = errors.New("a VM of the lab restarted")

// vmBoots matches what the lab's kernel prints when the kernel of a VM boots: it writes a counter's register that KVM
// does not emulate (check_hw_exists in arch/x86/events/core.c).
var vmBoots = regexp.MustCompile(`kvm \[([0-9]+)\]: vcpu0, guest rIP: 0x[0-9a-f]+ [Uu]nhandled WRMSR\(0xc0010007\)`)

// CheckVMs returns an ErrRestarted if the kernel of a VM has booted twice in the same QEMU, by the console of the lab.
func (h *Host) CheckVMs() error {
	console, err := h.Console()
	if err != nil {
		return fmt.Errorf("looking for VMs that restarted: %w", err)
	}
	return restarted(console)
}

func restarted(console []byte) error {
	boots := map[string]int{}
	for _, found := range vmBoots.FindAllSubmatch(console, -1) {
		pid := string(found[1])
		if boots[pid]++; boots[pid] > 1 {
			return fmt.Errorf("the VM of process %s has booted twice: %w", pid, ErrRestarted)
		}
	}
	return nil
}
