package policy

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// The guide has every quantity's defaults, and no other ones.
func TestGuide_AlarmsNameTheDefaults(t *testing.T) {
	guide, err := os.ReadFile("../../docs/daemon.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, there := strings.Cut(string(guide), "| quantity | is |")
	table, _, _ = strings.Cut(table, "\n\n")
	if rows := strings.Count(table, "\n| `"); !there || rows != len(alarmDefaults) {
		t.Errorf("the guide has %d quantities, there are %d", rows, len(alarmDefaults))
	}
	for _, d := range alarmDefaults {
		critical := "-"
		if d.Critical != 0 {
			critical = fmt.Sprint(d.Critical)
		}
		name, figures := fmt.Sprintf(
			"\n| `%s` |",
			d.quantity,
		), fmt.Sprintf("| %v | %s | %v | %v | %v |\n", d.Warning, critical, d.Clear, seconds(d.For), seconds(d.Quiet))
		_, row, named := strings.Cut(table+"\n", name)
		if row, _, _ = strings.Cut(row, "\n"); !named || !strings.HasSuffix(row+"\n", figures) {
			t.Errorf("%s: the guide has %q, want it to end in %q", d.quantity, row, figures)
		}
	}
}

// seconds shows a time as it is written in a policy: "60s".
func seconds(d Duration) string { return fmt.Sprintf("%.0fs", time.Duration(d).Seconds()) }
