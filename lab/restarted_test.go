package lab

import (
	"errors"
	"strings"
	"testing"
)

// The console of a lab whose first VM restarted.
const restartedConsole = `Booting from ROM...
[   51.017192] kvm [265]: vcpu0, guest rIP: 0xffffffff9c07e744 Unhandled WRMSR(0xc0010007) = 0xffff
[   69.893041] kvm [286]: vcpu0, guest rIP: 0xffffffff92c7e744 Unhandled WRMSR(0xc0010007) = 0xffff
[  265.237804] kvm [265]: vcpu0, guest rIP: 0xffffffffb047e744 Unhandled WRMSR(0xc0010007) = 0xffff
`

func TestRestarted(t *testing.T) {
	if err := restarted([]byte(restartedConsole)); !errors.Is(err, ErrRestarted) || !IsEmulatorFault(err) ||
		!strings.Contains(err.Error(), "process 265") {
		t.Errorf("error %v", err)
	}
	started := strings.ReplaceAll(restartedConsole, "265.237804] kvm [265]", "265.237804] kvm [301]")
	for _, console := range []string{started, "", "kvm [1]: kvm [1]: vcpu0"} {
		if err := restarted([]byte(console)); err != nil {
			t.Errorf("of %q: error %v", console, err)
		}
	}
}
