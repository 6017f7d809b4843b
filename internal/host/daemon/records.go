package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/numavisor/numavisor/internal/decide/control"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

// begin passes the last daemon's files to the controller.
func (l *loop) begin() error {
	closing, cancel := context.WithTimeout(l.ctx, settingTime)
	defer cancel()
	if err := l.Host.CloseInterrupted(closing); err != nil {
		l.Log.Warn("interrupted effects are not closed", "error", err)
	}
	var err error
	if l.alarms, err = record.LoadAlarms(l.Records); err != nil {
		l.Log.Warn("starting without earlier alarms", "error", err)
	}
	past, err := l.Journal.Read(record.Filter{})
	if err != nil {
		return fmt.Errorf("reading the journal, which names interrupted moves: %w", err)
	}
	start := control.Start{Entries: past.Entries, Damaged: l.damage(past.Unreadable), Alarms: l.alarms.State}
	if l.CopyRate != nil {
		measuring, cancel := context.WithTimeout(l.ctx, settingTime)
		defer cancel()
		if start.CopyRate, err = l.CopyRate(measuring); err != nil {
			l.Log.Warn("the price of a move is not known until the first one", "error", err)
		}
	}
	if journal.HeldFormer(past.Entries, plan.NUMABalancingPath) != "" {
		if start.NUMABalancing, err = l.Host.Settings.ReadSetting(plan.NUMABalancingPath); err != nil {
			l.Log.Warn("kernel balancing cannot be read", "error", err)
		}
	}
	l.step(start)
	return nil
}

// damage reports unreadable lines of the journal: the daemon does not know
// their content, and an operator should check them.
func (d *Daemon) damage(lines []string) []inventory.Gap {
	if len(lines) == 0 {
		return nil
	}
	for _, line := range lines {
		const text = "the journal is damaged: an interrupted move may be lost"
		d.Log.Error(text, "folder", d.Records, "line", line)
	}
	why := fmt.Sprintf(
		"%d of its lines in %s cannot be read (the first: %s): if one belongs to an interrupted move, "+
			"the daemon will not resume that move; "+
			"'numavisor list' shows the VMs' placement, 'numavisor history' the lines; "+
			"remove these lines, and restart the daemon",
		len(lines),
		d.Records,
		lines[0],
	)
	return []inventory.Gap{
		{Kind: inventory.JournalUnread, Object: inventory.HostRef(), What: "the whole journal", Why: why}}
}

// append adds an entry to the journal and the log.
func (d *Daemon) append(e journal.Entry) error {
	d.Log.Info(string(e.Kind), "what", e.What, "why", e.Why, "guests", e.Guests)
	err := d.Journal.Append(e)
	if err != nil {
		d.Log.Error("the journal cannot be written", "entry", e.What, "error", err)
	}
	return err
}

// saveAlarms writes the alarms to their file.
func (l *loop) saveAlarms(a *control.Alarms) {
	now := time.Now()
	l.alarms.State, l.alarms.Written = a.State, now
	l.alarms.Retain(a.Changes, now)
	if err := record.SaveAlarms(l.Records, l.alarms); err != nil {
		l.Log.Error("alarms cannot be saved", "error", err)
	}
}
