package fake

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
)

// Settings are a kernel's settings that can be changed, and the changes made.
// It is safe for concurrent use; Say gives access to the fields.
type Settings struct {
	mu     sync.Mutex
	Kernel inventory.Kernel // the kernel's present values
	Took   time.Duration    // duration of each change
	Fails  error            // error of each change; nil: it succeeds
	Began  []string         // changes that began
	Ended  []string         // changes that ended, successful or not
}

// Say changes the kernel's values, or how changes behave.
func (s *Settings) Say(how func(*Settings)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	how(s)
}

// Did returns the changes that began and those that ended.
func (s *Settings) Did() (began, ended []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.Began), slices.Clone(s.Ended)
}

// Now returns the kernel's present values.
func (s *Settings) Now() inventory.Kernel {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Kernel
}

// change takes its time, unless it is interrupted, and then makes the change.
func (s *Settings) change(ctx context.Context, what string, make func()) error {
	s.mu.Lock()
	s.Began = append(s.Began, what)
	took, fails := s.Took, s.Fails
	s.mu.Unlock()
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Ended = append(s.Ended, what)
	if fails == nil {
		make()
	}
	return fails
}

// ReadSetting returns a setting's value.
func (s *Settings) ReadSetting(path string) (string, error) {
	now := s.Now()
	if path == plan.KSMAcrossNodesPath {
		return now.KSMAcrossNodes, nil
	}
	return now.NUMABalancing, nil
}

// WriteSetting changes a setting.
func (s *Settings) WriteSetting(path, v string) error {
	if path == plan.KSMAcrossNodesPath {
		return s.change(context.Background(), "ksm", func() { s.Kernel.KSMAcrossNodes = v })
	}
	return s.change(context.Background(), "balancing "+v, func() { s.Kernel.NUMABalancing = v })
}

// ExcludeFromNumad makes numad ignore a process.
func (s *Settings) ExcludeFromNumad(ctx context.Context, pid int) error {
	return s.change(ctx, fmt.Sprint("numad -x ", pid), func() {})
}

// Tuned is a host whose kernel has settings that can be changed.
type Tuned struct {
	*Host
	settings *Settings
}

// On returns a host with these settings.
func (s *Settings) On(h *Host) Tuned { return Tuned{h, s} }

// Settings returns what the kernel says now.
func (t Tuned) Settings() (inventory.Kernel, []inventory.Gap) { return t.settings.Now(), nil }
