package lab

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseProbes(t *testing.T) {
	const us, line = time.Microsecond, "PROBE 1000 touch 3 40 52 90000 answer 120 900 4000 95000"
	console := "NUMAVISOR-GUEST READY 380 1\r\n" + line + "\r\n[   12.1] random: crng init done\r\nPROBE 1 touch 1 " +
		"2 3 4 answer 5 6 7 8\r\n" + line
	want := []Probe{
		{1000, Delays{3 * us, 40 * us, 52 * us, 90_000 * us}, Delays{120 * us, 900 * us, 4000 * us, 95_000 * us}},
		{1, Delays{1 * us, 2 * us, 3 * us, 4 * us}, Delays{5 * us, 6 * us, 7 * us, 8 * us}},
	}
	if diff := cmp.Diff(want, parseProbes([]byte(console))); diff != "" {
		t.Errorf("with an incomplete last line (-want +got):\n%s", diff)
	}
	for _, none := range []string{"", "PROBE", "PROBE\r\n",
		"PROBE 0 touch 1 2 3 4 answer 5 6 7 8\r\n",  // of no touch
		"PROBE 9 touch 1 2 3 answer 5 6 7 8\r\n",    // a figure is missing
		"PROBE 9 touch 1 2 3 4 answer 5 6 7\r\n",    // at the end, too
		"PROBE 9 touch 1 2 3 4 answer 5 6 7 8",      // incomplete
		"PROBE 9 touch -1 2 3 4 answer 5 6 7 8\r\n", // no delay
		"PROBE 9 touch 1 2 nan 4 answer 5 6 7 8\r\n",
		"PROBE 9 touch 1 2 3 99999999999 answer 5 6 7 8\r\n",
		"PROBE 9 touch 1 2 3 4 answer 5 6 7 8 9\r\n",
		"probe 2000 1\r\n", // echoed
		"xPROBE 9 touch 1 2 3 4 answer 5 6 7 8\r\n",
	} {
		if got := parseProbes([]byte(none)); len(got) != 0 {
			t.Errorf("%q is no probe, got %v", none, got)
		}
	}
}
