package policy

import (
	"errors"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// YAML takes a bare off for false; here it is the mode that the guide names.
func TestParse_OffNeedsNoQuotes(t *testing.T) {
	p, err := Parse(strings.NewReader("balance: {mode: off, guests: {db: off}}\nmovers: {kernel_balancing: off}"))
	if err != nil {
		t.Fatal(err)
	}
	want := Policy{
		Balance: Balance{Mode: ModeOff, Guests: map[string]Mode{"db": ModeOff}},
		Movers:  Movers{KernelBalancing: AnswerOff},
	}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParse_NamesTheFieldAndItsValue(t *testing.T) {
	for text, want := range map[string]string{
		"balance: {frob: 1}": "policy:1:11: balance.frob: no such field; allowed: mode, ",
		"frob: {a: 1}":       "policy:1:1: frob: no such field; allowed: ",
		"balance: {cooldwon: 5m}": "balance.cooldwon: no such field; did you mean " +
			"balance.cooldown?",
		"cooldown: 5m":                                "cooldown: no such field; did you mean balance.cooldown?",
		"balance: {mode: on}":                         `policy:1:17: balance.mode is "on"; allowed: off, advise, auto`,
		"balance: {guests: {db: 7}}":                  "balance.guests.db is 7; allowed: off, advise, auto",
		"balance: {guests: {db: }}":                   "policy:1:20: balance.guests.db is empty; allowed: off, advise",
		"balance: {bytes_per_round: -5}":              `balance.bytes_per_round is -5: size "-5"`,
		"balance: {cooldown: 1h, degraded_for: soon}": `balance.degraded_for is "soon": write it like "90s"`,
		"balance: {min_gain: 0.2, cooldown: soon}":    `balance.cooldown is "soon": write it like "90s"`,
		"balance: {guests: [db]}":                     "balance.guests is a list; allowed: a group of fields",
		"balance: {degraded_for: -5s}":                "balance.degraded_for is -5s; allowed: 0s to ",
		"balance: {cooldown: 25h}": "policy:1:21: balance.cooldown is 25h0m0s; allowed: 0s to " +
			"24h0m0s",
		"balance: {windows: [5]}":             `balance.windows[0] is 5: window "5": write it like`,
		"balance: {windows: '02:00-03:00'}":   `balance.windows is "02:00-03:00"; allowed: a list`,
		"balance: {wait: much}":               `balance.wait is "much"; allowed: a number`,
		"balance: {wait: 7}":                  "policy:1:17: balance.wait is 7; allowed: 0 to 1",
		"balance: 5":                          "policy:1:10: balance is 5; allowed: the fields mode, ",
		"housekeeping: 9-3":                   `housekeeping is "9-3": list "9-3"`,
		"movers: {ksm: off}":                  `policy:1:15: movers.ksm is "off"; allowed: leave, within`,
		"movers: {ksm: of}":                   `movers.ksm is "of"; allowed: leave, off, exclude, repair, within`,
		"count: sockets":                      `count is "sockets"; allowed: cores, threads`,
		"prefer: [pack]":                      "prefer is a list; allowed: spread, pack",
		"weights: {latency: 101}":             "policy:1:20: weights.latency is 101; allowed: 0 to 100",
		"search_steps: -1":                    "policy:1:15: search_steps is -1; allowed: 0",
		"balance: {mode: auto}\n---\nmode: x": "policy:2:1: a second YAML document ('---'); allowed is one",
		strings.Repeat("#", 1<<20) + "\n\n":   "policy: larger than 1 MiB",
	} {
		_, err := Parse(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.60s: want one error with %q, got %v", text, want, err)
		}
	}
}

// Faults of the file and values out of bounds are reported together.
func TestParse_ReportsAllErrors(t *testing.T) {
	_, err := Parse(strings.NewReader(`overcommit: 0.5
balance:
  patence: 5s
  wait: 2
  mode: always
movers:
  ksm: off
alarms:
  node-cpu: {warning: 2, for: 30h}
`))
	want := `policy:1:13: overcommit is 0.5; allowed: 1 to 64
policy:3:3: balance.patence: no such field; allowed: `
	for _, line := range []string{want, "\npolicy:5:9: balance.mode is \"always\"; allowed: off, advise, auto\n",
		"\npolicy:7:8: movers.ksm is \"off\"; allowed: leave, within\n",
		"\npolicy:9:23: alarms.node-cpu.warning is 2; allowed: values above 0, to 1\n",
		"\npolicy:9:31: alarms.node-cpu.for is 30h0m0s; allowed: 0s to 24h0m0s"} {
		if err == nil || !strings.Contains(err.Error(), line) {
			t.Errorf("no %q in %v", line, err)
		}
	}
}

func TestParse_PassesReadErrorsOn(t *testing.T) {
	broken := errors.New("broken disk")
	if _, err := Parse(iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
}

// A number alone could be bytes, KiB or MiB.
func TestParse_RefusesSizesWithoutAUnit(t *testing.T) {
	for text, says := range map[string]string{
		"keep_free_per_node: 512":              "policy:1:21: keep_free_per_node is 512: give a unit, such as 512MiB",
		"grow_huge_pages_up_to: \"1\"":         `grow_huge_pages_up_to is "1": give a unit`,
		"balance: {pace: 500}":                 "balance.pace is 500: give a unit",
		"balance: {bytes_per_round: 1}":        "balance.bytes_per_round is 1: give a unit",
		`{"balance":{"bytes_per_second":1e3}}`: "balance.bytes_per_second is 1e3: give a unit",
	} {
		if _, err := Parse(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: error %v, want %q", text, err, says)
		}
	}
	for _, text := range []string{"keep_free_per_node: 0", "balance: {pace: 500M}", "grow_huge_pages_up_to: " +
		"2MiB", "balance: {pace: 0}"} {
		if _, err := Parse(strings.NewReader(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}
