package top

import (
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/status"
)

var alarmColumns = []column{
	{title: "ALARM", width: 17, most: 24},
	{title: "OBJECT", width: 12, most: 32},
	{title: "SEVERITY", width: 9, high: true},
	{title: "VALUE", width: 7, most: 13, right: true, fixed: true},
	{title: "LIMIT", width: 7, most: 13, right: true, fixed: true, rank: 1},
	{title: "SINCE", width: 6, right: true, high: true},
	{title: "BY", width: 8, most: 40, fixed: true, rank: 2},
	{title: "WHY", width: 10, most: 100, fixed: true, rank: 3},
}

// alarmTable has a row for each active alarm.
func alarmTable(s *status.Status, now time.Time) table {
	t := table{name: "alarms", columns: alarmColumns}
	for _, a := range s.Alarms {
		if !a.Active() {
			continue
		}
		severity, order := warn, 1.0
		if a.Severity == alarm.Critical {
			severity, order = bad, 2.0
		}
		t.rows = append(t.rows, row{key: alarmKey(a), cells: []cell{
			{text: string(a.Quantity), tone: severity},
			{text: a.Object.String()},
			{text: string(a.Severity), tone: severity, order: order},
			{text: a.Quantity.Amount(a.Value)},
			{text: a.Quantity.Amount(a.Threshold), tone: quiet},
			{text: span(now.Sub(a.First)), order: now.Sub(a.First).Seconds()},
			{text: strings.Join(a.Guests, ", ")},
			{text: a.Why, tone: quiet},
		}})
	}
	return t
}

func alarmKey(a alarm.Alarm) string { return string(a.Quantity) + " of " + a.Object.String() }
