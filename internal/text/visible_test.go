package text_test

import (
	"testing"

	"github.com/numavisor/numavisor/internal/text"
)

func TestVisible(t *testing.T) {
	for raw, want := range map[string]string{
		"web1":                   "web1",
		`a\b`:                    `a\b`,
		"ünï 日本":                 "ünï 日本",
		"a\nb\tc\rd":             `a\nb\tc\rd`,
		"a\x1b[31mred":           `a\u001b[31mred`,
		"csi\u009b31m":           `csi\u009b31m`,
		"turned\u202eround":      `turned\u202eround`,
		"web\u200b1\u00ad\ufeff": `web\u200b1\u00ad\ufeff`, // each looks like web1
		"web1\U000e0041":         `web1\U000e0041`,
		"line\u2028\\ \x7f":      `line\u2028\\ \u007f`,
		"no UTF-8: \xff\xfe":     `no UTF-8: \ufffd\ufffd`,
	} {
		if got := text.Visible(raw); got != want {
			t.Errorf("Visible(%q) = %s; wanted %s", raw, got, want)
		}
	}
	if got := text.VisibleLines("a\tb\nc"); got != "a\\tb\nc" {
		t.Errorf("VisibleLines keeps lines: %q", got)
	}
}
