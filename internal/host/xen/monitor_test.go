package xen

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// reboots lets a VM reboot: it has no domain while xl lists domains a number of times, and another one then.
func (s *simulated) reboots(name string, lists int) {
	var old *simDomain
	for id, d := range s.domains {
		if d.name == name {
			old = d
			delete(s.domains, id)
			s.programs = append(s.programs, program{args: []string{"xl", "create"},
				log: fmt.Sprintf("Waiting for domain %s (domid %d) to die [pid 7]\n", name, id)})
		}
	}
	s.before = func(line string) {
		if line != "xl list -l" {
			return
		}
		if lists--; lists == 0 {
			s.domains[s.next] = old
			s.programs[len(s.programs)-1].log += fmt.Sprintf("Waiting for domain %s (domid %d) to die [pid 9]\n", name, s.next)
			s.next++
		}
	}
}

// monitorEnds lets the programs end that watch no domain any more.
func (s *simulated) monitorEnds() {
	for i := range s.programs {
		if _, id, ok := s.programs[i].watches(); ok && s.domains[id] == nil {
			s.programs[i].log = ""
		}
	}
}

func withVM(t *testing.T) (*Driver, *simulated) {
	t.Helper()
	h, s := joined(t)
	s.add("web", 0, "0-3", 2)
	return h.Control.(*Driver), s
}

// What is done to a VM that reboots is done to the domain with which it returns.
func TestDriver_WaitsForAVMThatReboots(t *testing.T) {
	d, s := withVM(t)
	s.reboots("web", 4)
	if err := d.PinVCPU(t.Context(), "web", 1, topology.MustParseSet[topology.CPUID]("4-7")); err != nil {
		t.Fatal(err)
	}
	if s.domains[2] == nil || s.domains[2].hard[1].String() != "4-7" {
		t.Errorf("the VM's new domain is not pinned: %+v", s.domains)
	}
}

// A VM that reboots between the listing and the call is pinned, too.
func TestDriver_RepeatsACallAfterAReboot(t *testing.T) {
	d, s := withVM(t)
	s.before = func(line string) {
		if strings.HasPrefix(line, "xl vcpu-pin 1 ") {
			s.reboots("web", 2)
		}
	}
	if err := d.PinVCPU(t.Context(), "web", 1, topology.MustParseSet[topology.CPUID]("4-7")); err != nil {
		t.Fatal(err)
	}
	if s.domains[2] == nil || s.domains[2].hard[1].String() != "4-7" {
		t.Errorf("the VM's new domain is not pinned: %+v", s.domains)
	}
}

// A VM that reboots while it is ended does not return.
func TestRemove_EndsAVMThatReboots(t *testing.T) {
	d, s := withVM(t)
	s.reboots("web", 3)
	again := s.before
	s.before = func(line string) {
		again(line)
		s.monitorEndsAfter(line)
	}
	if err := d.Remove(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, _, err := d.find(t.Context(), "web"); !errors.Is(err, guest.ErrNotFound) {
			t.Fatalf("after its end: %v; domains %+v", err, s.domains)
		}
	}
}

// monitorEndsAfter lets programs end that watch a domain which was just destroyed.
func (s *simulated) monitorEndsAfter(line string) {
	if line == "xl list -l" && len(s.domains) == 1 && s.next > 2 {
		s.monitorEnds()
	}
}

// The wait for a VM that does not return ends with an error, and not as if the VM had ended.
func TestDriver_WaitsForAReboot_ForALimitedTime(t *testing.T) {
	d, s := withVM(t)
	d.reboot = 300 * time.Millisecond
	s.reboots("web", 1000)
	if err := d.Remove(t.Context(), "web"); !errors.Is(err, guest.ErrRefused) || errors.Is(err, guest.ErrNotFound) {
		t.Errorf("error %v, want ErrRefused", err)
	}
}

// A VM that reboots, and one that is being built, are no guests, and gaps name them. A domain of another program has no
// configuration and is a guest.
func TestGuests_NamesVMsThatComeOrGo(t *testing.T) {
	d, s := withVM(t)
	built, other := s.add("built", 0, "0-3", 1), s.add("other", 0, "0-3", 1)
	built.foreign, built.memory, other.foreign = true, 0, true
	s.reboots("web", 1000)
	guests, err := d.Guests(t.Context())
	if len(guests) != 1 || guests[0].Name != "other" {
		t.Errorf("guests %+v, want only that of another program", guests)
	}
	var partly *IncompleteError
	if !errors.As(err, &partly) {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, g := range partly.Gaps() {
		if name, ok := g.Object.Guest(); ok && g.Kind == inventory.GuestGone {
			named[name] = true
		}
	}
	if len(named) != 2 || !named["web"] || !named["built"] {
		t.Errorf("gaps %+v, want one each for web and built", partly.Gaps())
	}
}

// A VM that begins to reboot while the domains are listed has a domain without a configuration.
func TestGuests_NamesAVMThatBeginsToReboot(t *testing.T) {
	d, s := withVM(t)
	s.domains[1].foreign = true
	s.programs = []program{{args: []string{"xl"}, log: "Waiting for domain web (domid 1) to die [pid 7]\n"}}
	guests, err := d.Guests(t.Context())
	var partly *IncompleteError
	if !errors.As(err, &partly) || len(guests) > 0 || partly.Gaps()[0].Object != inventory.GuestRef("web") {
		t.Errorf("guests %+v, %v; want a gap that names web", guests, err)
	}
}

// Xen still frees the memory of the domain that rebooted when xl has already removed its name. Captured from xl 4.17:
// "(null)  1  75  1  --psr-  33.9  Pool-0 2".
func TestGuests_NamesAVMThatReboots_WhoseDomainHasNoNameAnyMore(t *testing.T) {
	d, s := withVM(t)
	s.domains[1].name, s.domains[1].foreign, s.domains[1].memory, s.domains[1].ending = "(null)", true, 75, "--psr-"
	s.programs = []program{{args: []string{"xl"}, log: "Waiting for domain web (domid 1) to die [pid 7]\n"}}
	guests, err := d.Guests(t.Context())
	var partly *IncompleteError
	if !errors.As(err, &partly) || len(guests) > 0 || !slices.ContainsFunc(partly.Gaps(), func(g inventory.Gap) bool {
		return g.Kind == inventory.GuestGone && g.Object == inventory.GuestRef("web")
	}) {
		t.Errorf("guests %+v, %v; want a gap that names web", guests, err)
	}
}

// The program that watches a VM is found by its log.
func TestPrograms_FindsTheXLThatWatchesAVM(t *testing.T) {
	folder := t.TempDir()
	log, err := os.Create(filepath.Join(folder, "xl-my vm.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	fmt.Fprintf(log, "%sWaiting for domain my vm (domid 3) to die [pid 1]\nDomain 3 has shut down, reason code 1 0x1\n"+
		"Waiting for domain my vm--incoming (domid 12) to die [pid 2]\n", strings.Repeat("x\n", logBytes))
	program := exec.CommandContext(t.Context(), "sleep", "60")
	program.Args[0], program.Stdout = "xl", log
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = program.Process.Kill(); _ = program.Wait() }()
	all, err := New(nil).programs()
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if name, id, ok := all[i].watches(); ok && name == "my vm" && id == 12 {
			return
		}
	}
	t.Errorf("programs %q, want one that watches domain 12", all)
}
