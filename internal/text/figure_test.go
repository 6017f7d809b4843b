package text_test

import (
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestFigures(t *testing.T) {
	for got, want := range map[string]string{
		text.Percent(0.125):                          "12.5 %",
		text.Count(1, "node", "nodes"):               "1 node",
		text.Count(0, "node", "nodes"):               "0 nodes",
		text.Set(topology.NodeSet{}):                 "-",
		text.Set(topology.SetOf[topology.NodeID](3)): "3",
		text.Shorten("short", 5):                     "short",
		text.Shorten("日本日本", 4):                      "日本日本",
		text.Shorten("日本日本", 3):                      "日本日...",
		text.Shorten("\xff\xfe long", 1):             "\ufffd...",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestFirstClause(t *testing.T) {
	long := strings.Repeat("日", 61)
	for in, want := range map[string]string{
		"":                        "",
		"all of it":               "all of it",
		"first; second":           "first",
		"first \r\nsecond; third": "first",
		"a; b\nc":                 "a",
		long[:len("日")*60]:        long[:len("日")*60],
		long:                      long[:len("日")*59] + "…",
	} {
		if got := text.FirstClause(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
