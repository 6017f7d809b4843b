package daemon

import "time"

// State is what the daemon reports to its supervisor.
type State string

// The states of a daemon, in their order.
const (
	// Ready: the records are read and the loop runs.
	Ready State = "ready"
	// Alive: the loop still processes events. Reported again and again.
	Alive State = "alive"
	// Stopping: the loop has ended; running work is stopped and settings are
	// restored.
	Stopping State = "stopping"
)

// Supervisor is the program that started the daemon and monitors it: systemd,
// for example. The zero value gets no reports.
type Supervisor struct {
	// Report passes on a state, from the loop's goroutine; nil: states are not
	// reported.
	Report func(State)
	// AliveEvery is the time between two reports of Alive; 0: none are
	// reported.
	AliveEvery time.Duration
}

func (s Supervisor) report(now State) {
	if s.Report != nil {
		s.Report(now)
	}
}

// ticks returns when Alive is due; a nil channel if it is not reported.
func (s Supervisor) ticks() (due <-chan time.Time, stop func()) {
	if s.Report == nil || s.AliveEvery <= 0 {
		return nil, func() {}
	}
	t := time.NewTicker(s.AliveEvery)
	return t.C, t.Stop
}
