package text_test

import (
	"testing"

	"github.com/numavisor/numavisor/internal/text"
)

func TestShellWord(t *testing.T) {
	for word, want := range map[string]string{
		"web-1.example:2@x+y/z": "web-1.example:2@x+y/z",
		"":                      "''",
		"two words":             "'two words'",
		`a\x2db`:                `'a\x2db'`,
		"it's; rm -rf ~":        `'it'\''s; rm -rf ~'`,
		"$(id)":                 "'$(id)'",
	} {
		if got := text.ShellWord(word); got != want {
			t.Errorf("ShellWord(%q) is %s, want %s", word, got, want)
		}
	}
}
