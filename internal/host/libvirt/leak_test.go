package libvirt

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails when a goroutine outlives the tests: each has an owner that waits
// for it. libvirt's event loop serves all connections until the process ends;
// the library offers no way to end it.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("libvirt.org/go/libvirt.EventRunDefaultImpl"))
}
