package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/text"
)

func alarmsCommand() *cobra.Command {
	var folder string
	var all bool
	var in remote
	c := &cobra.Command{
		Use:   "alarms",
		Short: "List what is wrong on this host, since when, and which VMs cause it",
		Long: `Lists the active alarms, critical ones first: a quantity of a node, a VM or the
host that went beyond its threshold (policy: alarms) and has not come back.
--all adds the alarms that ended in the last 30 days.

The command reads the file in which the daemon stores its alarms. If the daemon
does not run, the list says when the daemon last wrote it. WHY shows the first
part of the reason; -o yaml and -o json have all of it.`,
		Example: `  numavisor alarms
  numavisor alarms -o yaml
  numavisor alarms --all -o json`,
		Args: takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := in.client(c)
			if err != nil {
				return err
			}
			if client != nil {
				return alarmsRemote(c, client)
			}
			list, err := readAlarms(folder, all, time.Now())
			if err != nil {
				return err
			}
			return emit(c, list, func(w io.Writer) { printAlarms(w, list, all) })
		},
	}
	c.Flags().BoolVar(&all, "all", false, "also list alarms that have ended")
	recordsFlag(c.Flags(), &folder)
	in.flag(c)
	return c
}

// alarmList is what alarms prints.
type alarmList struct {
	// Written is when a daemon last saved its alarms; none: it never did.
	Written time.Time `json:"written,omitzero"`
	// Silent says that no daemon has written since then, as a running one does.
	Silent bool          `json:"daemon_silent"`
	Alarms []alarm.Alarm `json:"alarms"`
}

// readAlarms lists the alarms of a folder: active ones first, critical before
// others, then ended ones, the latest end first.
func readAlarms(folder string, all bool, now time.Time) (alarmList, error) {
	stored, err := record.ReadAlarms(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return alarmList{}, err
	}
	list := alarmList{Written: stored.Written, Alarms: append([]alarm.Alarm{}, stored.State.Active()...)}
	// One write may be late; two are not.
	list.Silent = now.Sub(stored.Written) > 2*record.AlarmsEvery
	if all {
		ended := slices.Clone(stored.Cleared)
		slices.Reverse(ended)
		list.Alarms = append(list.Alarms, ended...)
	}
	return list, nil
}

func printAlarms(w io.Writer, list alarmList, all bool) {
	switch {
	case list.Written.IsZero():
		fmt.Fprintln(w, "no alarms are recorded: no daemon has written alarms here")
		return
	case len(list.Alarms) == 0 && all:
		fmt.Fprintln(w, "no alarms, and none in the last 30 days")
	case len(list.Alarms) == 0:
		fmt.Fprintln(w, "no alarms")
	default:
		columns(w, alarmRows(list.Alarms, all))
	}
	if list.Silent {
		printf(w, "\nno daemon has written alarms since %s: the list is from that time\n", moment(list.Written))
	}
}

func alarmRows(alarms []alarm.Alarm, all bool) [][]string {
	row := func(a alarm.Alarm, cleared string) []string {
		guests := strings.Join(a.Guests, ", ")
		if guests == "" {
			guests = "-"
		}
		cells := []string{string(a.Severity), string(a.Quantity), a.Object.String(), a.Quantity.Amount(a.Value),
			a.Quantity.Amount(a.Worst), moment(a.First)}
		if all {
			cells = append(cells, cleared)
		}
		return append(cells, guests, text.FirstClause(a.Why))
	}
	heading := []string{"SEVERITY", "QUANTITY", "OBJECT", "VALUE", "WORST", "SINCE"}
	if all {
		heading = append(heading, "CLEARED")
	}
	rows := [][]string{append(heading, "VMS", "WHY")}
	for _, a := range alarms {
		cleared := "-"
		if !a.Active() {
			cleared = moment(a.Cleared)
		}
		rows = append(rows, row(a, cleared))
	}
	return rows
}

// moment shows a time to the second.
func moment(t time.Time) string { return t.UTC().Format(time.RFC3339) }
