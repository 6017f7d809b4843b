package top

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails when a goroutine outlives the tests: each has an owner that
// waits for it. Bubble Tea's programs end without waiting for pending ticks.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("charm.land/bubbletea/v2.(*Program).execBatchMsg"),
		goleak.IgnoreAnyFunction("charm.land/bubbletea/v2.(*Program).execBatchMsg.func2"),
		goleak.IgnoreAnyFunction("charm.land/bubbletea/v2.Tick.func1"))
}
