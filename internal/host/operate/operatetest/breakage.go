package operatetest

import (
	"errors"

	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/topology"
)

// ErrLost is the error of a call that a test makes fail.
var ErrLost = errors.New("the machine is on fire")

// Breakage is one way in which the host breaks at one call of a driver.
type Breakage struct {
	Name  string
	Fault func(w World, call int, cancel func()) fake.Fault
	Ends  bool // the guest that was to be bound is no longer there
}

// Before breaks the host before the Nth call of a driver.
func Before(call int, do func() error) fake.Fault { return fake.Fault{Before: fake.Nth(call, do)} }

// Breakages are the ways that each action must survive.
var Breakages = []Breakage{
	{Name: "the call fails", Fault: func(_ World, call int, _ func()) fake.Fault {
		return Before(call, func() error { return ErrLost })
	}},
	{Name: "the call is done, its answer lost", Fault: func(_ World, call int, _ func()) fake.Fault {
		return fake.Fault{After: fake.Nth(call, func() error { return ErrLost })}
	}},
	{Name: "the context ends", Fault: func(_ World, call int, cancel func()) fake.Fault {
		return Before(call, func() error { cancel(); return nil })
	}},
	{Name: "all nodes fill up", Fault: func(w World, call int, _ func()) fake.Fault {
		return Before(call, func() error {
			for id := range topology.NodeID(4) {
				w.Fill(id, 0)
			}
			return nil
		})
	}},
	{Name: "the guest ends", Ends: true, Fault: func(w World, call int, _ func()) fake.Fault {
		return Before(call, func() error { w.Vanish("g"); return nil })
	}},
	{
		Name: "another guest takes its name and process id",
		Ends: true,
		Fault: func(w World, call int, _ func()) fake.Fault {
			return Before(call, func() error { return w.Replace(Replacement) })
		},
	},
}

// Replacement is a guest that replaces another one: its vCPU is on other CPUs
// than its memory, so that it is not in place by chance.
var Replacement = Kinds[0].Guest("g", 32*mib, []topology.NodeID{1}, CPUs("12-15"))
