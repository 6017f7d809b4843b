package e2e_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/labtest"
	"github.com/numavisor/numavisor/lab/rotate"
)

// The test compares the loop's view of a busy guest, whose vCPU and memory are
// on opposite nodes, with the truth: the tests of host/watch run inside.
func TestLabWatch(t *testing.T) {
	labtest.NeedsLab(t)
	rotate.Test(t, 5)
	const folder = "../../internal/host/watch"
	program := labtest.Build(t, folder)
	l := bootWith(t, "square4", lab.Options{Saved: true, Files: map[string]string{"watch-tests": program}})
	l.sh(t, "echo never > /sys/kernel/mm/transparent_hugepage/enabled")
	xml := fmt.Sprintf(`<domain type='kvm'><name>far</name><memory unit='MiB'>640</memory><vcpu>1</vcpu>
<numatune><memory mode='strict' nodeset='3'/></numatune><cputune><vcpupin vcpu='0' cpuset='0'/><emulatorpin cpuset='1'/></cputune>
<os><type arch='x86_64' machine='q35'>hvm</type><kernel>%s</kernel><initrd>%s</initrd><cmdline>%s</cmdline></os><features><acpi/></features>
<cpu mode='host-passthrough'/><devices><serial type='pty'/><controller type='usb' model='none'/><memballoon model='none'/></devices></domain>`,
		lab.GuestKernel, lab.GuestInitrd, lab.GuestCommandLine)
	l.sh(t, "cat > /tmp/far.xml <<'X'\n"+xml+"\nX\nvirsh -q create /tmp/far.xml")
	if err := l.AwaitGuest(t.Context(), "far"); err != nil {
		t.Fatal(err)
	}
	scope, err := l.Scope()
	if err != nil {
		t.Fatal(err)
	}
	if err := scope.Set(t.Context(), labcounter.Count); err != nil {
		t.Fatal(err)
	}
	load, stop := context.WithCancel(t.Context())
	busy := make(chan struct{})
	go func() {
		defer close(busy)
		_, _ = l.Bandwidth(load, "far", 30*time.Second) // its figure is of no interest; ended below
	}()
	labtest.Inside(t, l.Host, "watch-tests", folder, "TestLabWatchAgreesWithTheKernel")
	stop()
	<-busy
	// What things cost is compared at full speed.
	if err := scope.Set(t.Context(), labcounter.Off); err != nil {
		t.Fatal(err)
	}
	labtest.Inside(t, l.Host, "watch-tests", folder, "TestLabWatchIsCheap")
}
