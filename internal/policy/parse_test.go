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
		"balance: {frob: 1}":                          `balance.frob: there is no such field`,
		"frob: {a: 1}":                                `frob: there is no such field`,
		"balance: {mode: on}":                         "balance.mode: true",
		"balance: {guests: {db: 7}}":                  `balance.guests.db "7": allowed are off, advise, auto`,
		"balance: {bytes_per_round: -5}":              `balance.bytes_per_round: size "-5"`,
		"balance: {cooldown: 1h, degraded_for: soon}": `balance.degraded_for: duration "soon"`,
		"balance: {min_gain: 0.2, cooldown: soon}":    `balance.cooldown: duration "soon"`,
		"balance: {guests: [db]}":                     "balance.guests: ",
		"balance: {degraded_for: -5s}":                "balance.degraded_for -5s: allowed are 0s to ",
		"balance: {cooldown: 25h}":                    "balance.cooldown 25h0m0s: allowed are 0s to 24h0m0s",
		"balance: {windows: [5]}":                     "balance.windows: window 5",
		"balance: {windows: '02:00-03:00'}":           "balance.windows: ",
		"balance: {wait: much}":                       `balance.wait: "much" is not a number`,
		"balance: {mode: 7}":                          "balance.mode: 7: allowed are off, advise, auto",
		"balance: 5":                                  "balance: ",
		"housekeeping: 9-3":                           `housekeeping: list "9-3"`,
		"alarms: {node-cpu: {for: 5}}":                "alarms.node-cpu.for: duration 5",
		"movers: {ksm: off}":                          `movers.ksm "off": allowed are "leave" and "within"`,
		"balance: {mode: auto}\n---\nmode: x":         "more than one YAML document",
		"---\n---\nbalance: {mode: auto}":             "more than one YAML document",
		strings.Repeat("#", maxBytes) + "\n\n":        "larger than 1 MiB",
	} {
		if _, err := Parse(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: want an error with %q, got %v", text, want, err)
		}
	}
	for name, text := range map[string]string{
		"a comment before the mark":     "# ours\n---\nbalance: {mode: auto}\n",
		"a directive before the mark":   "%YAML 1.1\n---\nbalance: {mode: auto}\n",
		"an empty line before the mark": "\n  \n---\nbalance: {mode: auto}\n",
		"no mark":                       "balance: {mode: auto}\n",
		"a file of the greatest size":   strings.Repeat("#", maxBytes-1) + "\n",
	} {
		if _, err := Parse(strings.NewReader(text)); err != nil {
			t.Errorf("%s: %v", name, err)
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
		"keep_free_per_node: 512":              "keep_free_per_node is 512: give a unit, such as 512MiB",
		"grow_huge_pages_up_to: \"1\"":         "grow_huge_pages_up_to is 1: give a unit",
		"balance: {pace: 500}":                 "balance.pace is 500: give a unit",
		"balance: {bytes_per_round: 1}":        "balance.bytes_per_round is 1: give a unit",
		`{"balance":{"bytes_per_second":1e3}}`: "balance.bytes_per_second is 1000: give a unit",
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
