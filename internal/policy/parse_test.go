package policy

import (
	"strings"
	"testing"
)

// YAML takes a bare off for false; here it is the mode that the guide names.
func TestOffNeedsNoQuotes(t *testing.T) {
	p, err := Parse(strings.NewReader("balance: {mode: off, guests: {db: off}}\nmovers: {kernel_balancing: off}"))
	if err != nil {
		t.Fatal(err)
	}
	if p.Balance.Mode != ModeOff || p.Balance.Guests["db"] != ModeOff || p.Movers.KernelBalancing != AnswerOff {
		t.Errorf("%+v %+v", p.Balance, p.Movers)
	}
}

func TestParseNamesTheFieldAndItsValue(t *testing.T) {
	for text, want := range map[string]string{
		"balance: {frob: 1}":                   `balance.frob: there is no such field`,
		"frob: {a: 1}":                         `frob: there is no such field`,
		"balance: {mode: on}":                  "balance.mode: true",
		"balance: {guests: {db: 7}}":           `balance.guests.db "7": allowed are off, advise, auto`,
		"balance: {bytes_per_round: -5}":       `balance.bytes_per_round: size "-5"`,
		"balance: {rest: 1h, patience: soon}":  `balance.patience: duration "soon"`,
		"balance: {patience: -5s}":             "balance.patience -5s: allowed are 0s to ",
		"balance: {rest: 25h}":                 "balance.rest 25h0m0s: allowed are 0s to 24h0m0s",
		"balance: {windows: [5]}":              "balance.windows: window 5",
		"balance: {windows: '02:00-03:00'}":    "balance.windows: ",
		"balance: {wait: much}":                "balance.wait: ",
		"balance: 5":                           "balance: ",
		"housekeeping: 9-3":                    `housekeeping: list "9-3"`,
		"alarms: {node-cpu: {for: 5}}":         "alarms.node-cpu.for: duration 5",
		"movers: {ksm: off}":                   `movers.ksm "off": allowed are "leave" and "within"`,
		"balance: {mode: auto}\n---\nmode: x":  "more than one YAML document",
		"---\n---\nbalance: {mode: auto}":      "more than one YAML document",
		strings.Repeat("#", maxBytes) + "\n\n": "larger than 1 MiB",
	} {
		if _, err := Parse(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: want an error with %q, got %v", text, want, err)
		}
	}
	if _, err := Parse(strings.NewReader("# ours\n---\nbalance: {mode: auto}\n")); err != nil {
		t.Errorf("one document with a mark: %v", err)
	}
}
