package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/alarm"
)

func TestParse_Alarms(t *testing.T) {
	p, err := Parse(strings.NewReader(`
alarms:
  node-cpu: {warning: 0.8, for: 90s}
  competitor: {disabled: true}
  move-failed: {quiet: 2m}
`))
	if err != nil {
		t.Fatal(err)
	}
	a := p.Alarms.WithDefaults()
	want := Threshold{
		Warning: 0.8,
		Clear:   0.95,
		For:     Duration(90 * time.Second),
		Quiet:   Duration(time.Minute),
	}
	if diff := cmp.Diff(want, a[alarm.NodeCPU]); diff != "" {
		t.Errorf("node-cpu (-want +got):\n%s", diff)
	}
	if !a[alarm.CompetingMover].Disabled {
		t.Error("competitor: enabled, the file disables it")
	}
	if a[alarm.SourceUnreadable].Disabled {
		t.Errorf("%s: disabled, the file does not name it", alarm.SourceUnreadable)
	}
	if got := a[alarm.StuckMove].Quiet; got != Duration(2*time.Minute) {
		t.Errorf("move-failed: quiet %v, want 2m", got)
	}
	if d := AlarmDefaults(); a[alarm.GuestWait] != d[alarm.GuestWait] || len(a) != len(d) {
		t.Error("what the file does not name has another value than the default")
	}
	if diff := cmp.Diff(a, a.WithDefaults()); diff != "" {
		t.Errorf("defaults change what is set:\n%s", diff)
	}
}

func TestParse_AlarmsNameTheFieldAndItsLimits(t *testing.T) {
	for text, want := range map[string]string{
		"{node-heat: {warning: 1}}":   ":1:10: alarms.node-heat: no such field; allowed: node-cpu, ",
		"{node-cpus: {warning: 1}}":   ":1:10: alarms.node-cpus: no such field; did you mean alarms.node-cpu?",
		"{node-cpu: {warning: 95}}":   ":1:30: alarms.node-cpu.warning is 95; allowed: values above 0, to 1",
		"{node-cpu: {warning: -1}}":   "alarms.node-cpu.warning is -1",
		"{node-cpu: {warning: .nan}}": "alarms.node-cpu.warning is .nan; allowed: a number",
		"{node-memory: {warning: 0.99}}": "alarms.node-memory.critical is 0.98; allowed: 0.99 (its " +
			"warning) to 1",
		"{guest-wait: {critical: 0.05}}":            "alarms.guest-wait.critical is 0.05; allowed: 0.1",
		"{guest-wait: {clear: 1.1}}":                "alarms.guest-wait.clear is 1.1",
		"{guest-wait: {for: 25h}}":                  "alarms.guest-wait.for is 25h0m0s; allowed: 0s to 24h0m0s",
		"{guest-wait: {quiet: -1s}}":                "alarms.guest-wait.quiet is -1s",
		"{guest-wait: {for: 5}}":                    "alarms.guest-wait.for is 5: write it like \"90s\"",
		"{guest-wait: {disabled: sometimes}}":       `alarms.guest-wait.disabled is "sometimes"; allowed: true or false`,
		"{guest-wait: {warnings: 0.5}}":             "warnings: no such field; did you mean alarms.guest-wait.warning?",
		"{kernel-moves: {warning: 600}}":            "alarms.kernel-moves.critical is 500",
		"{kernel-moves: {warning: 600, clear: .5}}": "alarms.kernel-moves.critical is 500",
	} {
		if _, err := Parse(strings.NewReader("alarms: " + text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want an error with %q, got %v", text, want, err)
		}
	}
	if _, err := Parse(strings.NewReader("alarms: {kernel-moves: {warning: 600, critical: 1000}}")); err != nil {
		t.Error(err)
	}
}

func TestAlarmDefaults_EveryQuantity(t *testing.T) {
	if err := (Policy{Alarms: AlarmDefaults()}).Validate(); err != nil {
		t.Error(err)
	}
	words := alarm.Quantity("").Words()
	for _, q := range words {
		if AlarmDefaults()[alarm.Quantity(q)].Warning == 0 {
			t.Errorf("%s has no default", q)
		}
	}
	if len(words) != len(alarmDefaults) {
		t.Errorf("%d quantities, %d defaults", len(words), len(alarmDefaults))
	}
}

// A VM may use all CPUs of its node without waiting for any. That must not page
// an operator.
func TestAlarmDefaults_CPUUseAloneIsNeverCritical(t *testing.T) {
	if c := AlarmDefaults()[alarm.NodeCPU].Critical; c != 0 {
		t.Errorf("node-cpu is critical from %v on", c)
	}
	for _, q := range []alarm.Quantity{alarm.NodeWait, alarm.GuestWait} {
		if AlarmDefaults()[q].Critical == 0 {
			t.Errorf("%s is never critical, though VMs wait", q)
		}
	}
}
