package operatetest

import (
	"context"
	"errors"
	"testing"

	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/plan"
)

// Settings are a kernel's settings, whose Nth call fails.
type Settings struct {
	Values map[string]string
	Fails  int // number of the call that fails, from 1; 0: none
	Calls  int
	Wrote  func() // at each write, before it is made
}

// ErrKernel is the error of the call that fails.
var ErrKernel = errors.New("input/output error")

func (k *Settings) call() error {
	if k.Calls++; k.Calls == k.Fails {
		return ErrKernel
	}
	return nil
}

// ReadSetting returns the value of a path.
func (k *Settings) ReadSetting(path string) (string, error) {
	return k.Values[path], k.call()
}

// WriteSetting sets the value of a path.
func (k *Settings) WriteSetting(path, value string) error {
	if k.Wrote != nil {
		k.Wrote()
	}
	if err := k.call(); err != nil {
		return err
	}
	k.Values[path] = value
	return nil
}

// ExcludeFromNumad counts as a call, and changes nothing.
func (k *Settings) ExcludeFromNumad(context.Context, int) error { return k.call() }

// WithSettings is a host with settings and a journal. Call number fails of the
// settings fails; 0: none.
func WithSettings(t *testing.T, fails int) (*move.Host, *Settings, *Book) {
	t.Helper()
	w := New(t, Square, Folder(t))
	k := &Settings{
		Values: map[string]string{plan.NUMABalancingPath: "3", plan.KSMAcrossNodesPath: "1"},
		Fails:  fails,
	}
	b := &Book{}
	w.Joined.Settings, w.Joined.Journal, w.Joined.By = k, b, "alice (uid 1000)"
	return w.Joined, k, b
}

// BalancingOff turns automatic NUMA balancing from 3 to 2.
var BalancingOff = plan.Remedy{
	Kind:  plan.WriteSetting,
	Path:  plan.NUMABalancingPath,
	From:  "3",
	Value: "2",
	Why:   "doctor: numa-balancing-against-binding",
}
