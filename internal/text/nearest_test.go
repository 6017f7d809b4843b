package text_test

import (
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/text"
)

func TestNearest(t *testing.T) {
	fields := []string{"vcpus", "memory", "page_size", "cpu", "io"}
	for word, want := range map[string]string{
		"vcpu":                     "vcpus", // one letter, though "cpu" is as near
		"memroy":                   "memory",
		"memeroy":                  "memory",
		"memorandum":               "",
		"pageSize":                 "page_size",
		"PAGE-SIZE":                "page_size",
		"xy":                       "", // all letters of "io" are wrong
		"":                         "",
		strings.Repeat("m", 1<<20): "",
	} {
		if got := text.Nearest(word, fields); got != want {
			t.Errorf("%.20q: got %q, want %q", word, got, want)
		}
	}
	if got := text.Nearest("vcpus", nil); got != "" {
		t.Errorf("got %q out of no candidates", got)
	}
}
