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

// begin gives the controller what the last daemon left in files.
func (l *loop) begin() error {
	closing, cancel := context.WithTimeout(l.ctx, settingTime)
	defer cancel()
	if err := l.Host.CloseInterrupted(closing); err != nil {
		l.Log.Warn("effects that were interrupted are not closed", "error", err)
	}
	var err error
	if l.alarms, err = record.LoadAlarms(l.Records); err != nil {
		l.Log.Warn("alarms begin anew", "error", err)
	}
	past, err := l.Journal.Read(record.Filter{})
	if err != nil {
		return fmt.Errorf("reading the journal, without which moves cut short are not known: %w", err)
	}
	start := control.Start{Entries: past.Entries, Damaged: l.damage(past.Unreadable), Alarms: l.alarms.State}
	if journal.HeldFormer(past.Entries, plan.NUMABalancingPath) != "" {
		if start.NUMABalancing, err = l.Host.Settings.ReadSetting(plan.NUMABalancingPath); err != nil {
			l.Log.Warn("kernel balancing cannot be read", "error", err)
		}
	}
	l.step(start)
	return nil
}

// damage reports lines of the journal that cannot be read: what they said, the
// daemon does not know, and an operator should.
func (d *Daemon) damage(lines []string) []inventory.Gap {
	if len(lines) == 0 {
		return nil
	}
	for _, line := range lines {
		const text = "the journal is damaged: a move that was cut short may be lost with it"
		d.Log.Error(text, "folder", d.Records, "line", line)
	}
	why := fmt.Sprintf(
		"%d of its lines in %s cannot be read (the first: %s): where one is of a move that was cut short, "+
			"nobody takes that up; 'numavisor list' shows how VMs lie, 'numavisor history' which lines; "+
			"take them out, and start the daemon anew",
		len(lines),
		d.Records,
		lines[0],
	)
	return []inventory.Gap{
		{Kind: inventory.JournalUnread, Object: inventory.HostRef(), What: "all of the journal", Why: why}}
}

// append puts an entry into the journal and the log.
func (d *Daemon) append(e journal.Entry) error {
	d.Log.Info(string(e.Kind), "what", e.What, "why", e.Why, "guests", e.Guests)
	err := d.Journal.Append(e)
	if err != nil {
		d.Log.Error("the journal cannot be written", "entry", e.What, "error", err)
	}
	return err
}

// saveAlarms puts the alarms into their file.
func (l *loop) saveAlarms(a *control.Alarms) {
	now := time.Now()
	l.alarms.State, l.alarms.Written = a.State, now
	l.alarms.Retain(a.Changes, now)
	if err := record.SaveAlarms(l.Records, l.alarms); err != nil {
		l.Log.Error("alarms cannot be kept", "error", err)
	}
}
