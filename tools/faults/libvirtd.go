package main

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/tools/process"
)

// libvirtd is the state of a host's libvirtd, in a file that the tool writes and the process of the host reads.
type libvirtd string

const (
	libvirtdRuns  libvirtd = ""
	libvirtdDown  libvirtd = "down"  // nothing connects to it; VMs run on
	libvirtdFlaky libvirtd = "flaky" // it ends during calls and is restarted: it may have carried out the call
)

func libvirtdFile(folder string) string { return filepath.Join(folder, "libvirtd") }

// libvirtd returns the fault that a host's libvirtd is in a state for a time.
func (f *aFleet) libvirtd(p *process.Program, state libvirtd) fault {
	file := libvirtdFile(f.data(p.Name))
	return fault{name: "libvirtd " + string(state) + " " + p.Name,
		begin: func() error { return os.WriteFile(file, []byte(state), 0o600) },
		end:   func() error { return os.Remove(file) }}
}

var (
	errDown = errors.New("the simulated libvirtd does not run")
	errLost = errors.New("the connection to the simulated libvirtd was lost during the call")
)

// connection is a host's connection to its libvirtd.
type connection struct{ file string }

func (c connection) state() (libvirtd, error) {
	data, err := os.ReadFile(c.file)
	if errors.Is(err, fs.ErrNotExist) {
		return libvirtdRuns, nil
	}
	return libvirtd(data), err
}

// ask makes a call: it has its effect and an answer, or no answer and perhaps no effect.
func (c connection) ask(do func() error) error {
	if err := c.before(); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return c.after()
}

func (c connection) before() error {
	switch state, err := c.state(); {
	case err != nil:
		return err
	case state == libvirtdDown:
		return errDown
	case state == libvirtdFlaky && rand.IntN(3) == 0:
		return errLost
	}
	return nil
}

func (c connection) after() error {
	switch state, err := c.state(); {
	case err != nil:
		return err
	case state == libvirtdDown, state == libvirtdFlaky && rand.IntN(3) == 0:
		return errLost
	}
	return nil
}

// inject makes those calls of the fake fail that ask libvirtd, but for those by which the hypervisor of this tool
// starts and ends VMs, which call ask.
func (c connection) inject(h *fake.Host) {
	asks := func(call fake.Call) bool {
		return slices.Contains([]string{"Guests", "PinVCPU", "PinEmulator", "PinIOThread", "TuneLive", "Record",
			"Forget", "Configure", "StoredBinding", "RestoreBinding"}, call.Method)
	}
	h.Inject(fake.Fault{
		Before: func(call fake.Call) error {
			if asks(call) {
				return c.before()
			}
			return nil
		},
		After: func(call fake.Call) error {
			if asks(call) {
				return c.after()
			}
			return nil
		},
	})
}
