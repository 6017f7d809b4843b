// Package hosttest is one suite for every implementation of a host: the fake,
// libvirt's simulated driver, libvirt with real guests, and later ones. The
// suite tests the behaviour that observe, apply and operate rely on, through
// their interfaces alone.
//
// A function that an implementation lacks is declared (Target.Lacks). The suite
// then checks that the implementation refuses it with guest.ErrRefused and
// changes nothing, so that no check is skipped.
//
// Join turns the fake into the host that the tests of operate and of the daemon
// act on.
package hosttest

import (
	"context"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/topology"
)

// Hypervisor are all functions of a hypervisor that the project needs.
type Hypervisor interface {
	observe.Hypervisor
	apply.Hypervisor
	operate.Domains
}

// Kernel are the functions of the kernel that the suite needs.
type Kernel interface {
	observe.Kernel
	StartTicks(pid int) (uint64, error)
}

// Function is something that not every implementation can do.
type Function string

// Functions that an implementation may lack.
const (
	PinRunningVCPU   Function = "pin a running guest's vCPU"
	PinStoredHelpers Function = "pin emulator and I/O threads of a running guest that has a stored configuration"
	RetuneRunning    Function = "change the nodes of a running guest"
	// Guests of a hypervisor without them have no memory modes, emulator or I/O threads, either.
	StoreConfiguration Function = "store a configuration for a guest's next start"
	PinHelpers         Function = "pin emulator and I/O threads"
	BindMemory         Function = "report the memory mode and nodes of a guest's configuration"
)

// Target is one implementation. A field without a comment must be set.
type Target struct {
	Hypervisor Hypervisor
	// Topology has a node with at least two CPUs and 256 MiB of memory.
	Topology topology.Topology
	// Render makes the definition of a placed guest, in the form that Start
	// accepts.
	Render func(guest.Spec, guest.Placement) (guest.Definition, error)
	// PowerOff ends a guest's run from inside; a stored configuration stays.
	PowerOff func(ctx context.Context, name string) error
	// Garble makes a guest's recorded intent unreadable.
	Garble func(ctx context.Context, name string) error
	// Kernel runs the guests; nil where guests have no processes.
	Kernel Kernel
	// Lacks are the functions that the implementation does not have.
	Lacks []Function
}

// Time limits of one test, in which up to a dozen guests are started (in the
// lab, some seconds each), and of removing a guest after it.
const (
	testTime   = 5 * time.Minute
	removeTime = time.Minute
)

// Run runs the suite. open returns the implementation with none of the suite's
// guests; it is called once for each test, and once for those that share guests.
func Run(t *testing.T, open func(t *testing.T) Target) {
	t.Helper()
	sharing := newSuite(t, open(t))
	defer sharing.spend(sharedName(true))
	defer sharing.spend(sharedName(false))
	for _, test := range []struct {
		name string
		run  func(*suite)
	}{
		{"NameIsTakenOnce", testNameIsTakenOnce},
		{"PinVCPU", testPinVCPU},
		{"PinHelpers", testPinHelpers},
		{"BadPins", testBadPins},
		{"RetuneStrict", testRetuneStrict},
		{"HostileIntents", testHostileIntents},
		{"ConfigureTransient", testConfigureTransient},
		{"UnreadableIntent", testUnreadableIntent},
		{"Intent", testIntent},
		{"Configure", testConfigure},
		{"RestoreBinding", testRestoreBinding},
		{"StoredBindingTransient", testStoredBindingTransient},
		{"Process", testProcess},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(sharing.as(t)) })
	}
	for _, test := range []struct {
		name string
		run  func(*suite)
	}{
		{"StartAndRemove", testStartAndRemove},
		{"PowerOff", testPowerOff},
		{"Undefine", testUndefine},
		{"Resize", testResize},
		{"BadDefinition", testBadDefinition},
		{"HostileNames", testHostileNames},
		{"RetuneRestrictive", testRetuneRestrictive},
		{"NoSuchGuest", testNoSuchGuest},
		{"EndedContext", testEndedContext},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.run(newSuite(t, open(t)))
		})
	}
}
