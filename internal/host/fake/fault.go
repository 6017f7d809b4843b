package fake

import "sync"

// Call is one call of a method that the real drivers have, too.
type Call struct {
	N      int // from 1, over all methods, since Inject
	Method string
}

// Fault is called for every call. It may change the host, end a context, or
// make the call fail. Its own calls are counted and passed to it, too.
type Fault struct {
	// Before returns an error for a call that fails without an effect.
	Before func(Call) error
	// After returns an error for a call that took effect, but whose answer is
	// lost.
	After func(Call) error
}

// Nth runs a function at the Nth call.
func Nth(n int, do func() error) func(Call) error {
	return func(c Call) error {
		if c.N != n {
			return nil
		}
		return do()
	}
}

// NthOf runs a function at the Nth call of one method.
func NthOf(method string, n int, do func() error) func(Call) error {
	var mu sync.Mutex
	seen := 0
	return func(c Call) error {
		if c.Method != method {
			return nil
		}
		mu.Lock()
		seen++
		now := seen == n
		mu.Unlock()
		if !now {
			return nil
		}
		return do()
	}
}

type injection struct {
	mu    sync.Mutex
	fault Fault
	calls []Call
}

// Inject makes calls fail from now on, and restarts their count. The zero Fault
// makes none fail.
func (h *Host) Inject(f Fault) {
	h.injection.mu.Lock()
	defer h.injection.mu.Unlock()
	h.injection.fault, h.injection.calls = f, nil
}

// Calls returns the calls since Inject.
func (h *Host) Calls() []Call {
	h.injection.mu.Lock()
	defer h.injection.mu.Unlock()
	return append([]Call(nil), h.injection.calls...)
}

// call runs one method of a driver, with the fault asked before and after.
func (h *Host) call(method string, do func() error) error {
	h.injection.mu.Lock()
	c := Call{N: len(h.injection.calls) + 1, Method: method}
	h.injection.calls = append(h.injection.calls, c)
	fault := h.injection.fault
	h.injection.mu.Unlock()
	if fault.Before != nil {
		if err := fault.Before(c); err != nil {
			return err
		}
	}
	h.mu.Lock()
	err := do()
	h.mu.Unlock()
	if err == nil && fault.After != nil {
		err = fault.After(c)
	}
	return err
}
