package text_test

import (
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
