package top

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/status/statustest"
	"github.com/numavisor/numavisor/internal/topology"
)

var noon = statustest.Noon

var update = flag.Bool("update", false, "rewrite the golden files")

// seeing is a model that has shown a host for some seconds.
func seeing(t testing.TB, d Daemon, width, height, nodes, guests, seconds int) Model {
	t.Helper()
	m := New(d, time.Second, noon)
	m = after(t, m, tea.WindowSizeMsg{Width: width, Height: height})
	for s := 0; s <= seconds; s += 2 {
		m = after(t, m, tickMsg(noon.Add(time.Duration(s)*time.Second)),
			statusMsg{status: statustest.BusyHost(nodes, guests, s), at: noon.Add(time.Duration(s) * time.Second)})
	}
	return m
}

// after returns the model after some messages, without running their commands.
func after(t testing.TB, m Model, msgs ...tea.Msg) Model {
	t.Helper()
	for _, msg := range msgs {
		next, _ := m.Update(msg)
		m = next.(Model)
	}
	return m
}

// keys are key presses by name; single letters are typed.
func keys(names ...string) []tea.Msg {
	special := map[string]rune{
		"enter":     tea.KeyEnter,
		"esc":       tea.KeyEscape,
		"tab":       tea.KeyTab,
		"up":        tea.KeyUp,
		"down":      tea.KeyDown,
		"end":       tea.KeyEnd,
		"backspace": tea.KeyBackspace,
	}
	var msgs []tea.Msg
	for _, n := range names {
		if code, ok := special[n]; ok {
			msgs = append(msgs, tea.KeyPressMsg{Code: code})
			continue
		}
		for _, r := range n {
			msgs = append(msgs, tea.KeyPressMsg{Code: r, Text: string(r)})
		}
	}
	return msgs
}

// pictured is a model's picture without styles, and without spaces at the end of lines.
func pictured(m Model) string {
	var b strings.Builder
	for _, l := range strings.Split(ansi.Strip(m.View().Content), "\n") {
		b.WriteString(strings.TrimRight(l, " ") + "\n")
	}
	return b.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: the picture differs (run with -update to accept):\n%s", path, diff)
	}
}

func TestPicturesOfHosts(t *testing.T) {
	for _, c := range []struct {
		name                         string
		width, height, nodes, guests int
		keys                         []string
	}{
		{"80x24-8-nodes", 80, 24, 8, 43, nil},
		{"80x24-64-nodes-200-guests", 80, 24, 64, 200, []string{"tab", "tab", "tab", "tab", "down", "down"}},
		{"200x50-8-nodes-200-guests", 200, 50, 8, 200, []string{"end"}},
		{"120x30-2-nodes", 120, 30, 2, 9, []string{"s", "s", "S"}},
		{"80x24-one-node-no-guests", 80, 24, 1, 0, nil},
		{"80x40-inspect-guest", 80, 40, 8, 43, []string{"enter"}},
		{"80x24-inspect-node", 80, 24, 8, 43, []string{"tab", "tab", "tab", "tab", "down", "enter"}},
		{"80x24-inspect-move", 80, 24, 8, 43, []string{"tab", "enter"}},
		{"80x24-accept", 80, 24, 8, 43, []string{"tab", "tab", "a"}},
		{"80x24-filter", 80, 24, 8, 43, []string{"/", "cache2"}},
		{"80x30-help", 80, 30, 8, 43, []string{"?"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := seeing(t, nil, c.width, c.height, c.nodes, c.guests, 40)
			m = after(t, m, keys(c.keys...)...)
			golden(t, c.name, pictured(m))
		})
	}
}

func TestPlainPicture(t *testing.T) {
	s := statustest.BusyHost(4, 9, 0)
	golden(t, "plain", Plain(&s, noon.Add(time.Second), 160))
}

// For any size, screen and host: as many lines as the screen has, and none too
// wide.
func TestEveryPictureFitsTheScreen(t *testing.T) {
	screens := [][]string{nil, {"enter"}, {"?"}, {"tab", "enter"}, {"tab", "tab", "a"}, {"p"},
		{"p", "2h why\n\tnot", "enter"}, {"tab", "tab", "tab", "enter"}, {"/", "zzz"}}
	hosts := map[int]Model{}
	for _, nodes := range []int{1, 64} {
		hosts[nodes] = seeing(t, nil, 80, 24, nodes, 25, 4)
	}
	for _, width := range []int{1, 20, 79, 80, 81, 133, 200} {
		for _, height := range []int{1, 2, 6, 24, 50} {
			for _, nodes := range []int{1, 64} {
				m := after(t, hosts[nodes], tea.WindowSizeMsg{Width: width, Height: height})
				for _, pressed := range screens {
					m := after(t, m, keys(pressed...)...)
					wantFit(t, m, fmt.Sprint(width, "x", height, " ", nodes, " nodes, keys ", pressed))
				}
				m = after(
					t,
					m,
					statusMsg{
						err: errors.New("connection refused: " + strings.Repeat("long ", 60)),
						at:  noon.Add(time.Minute),
					},
				)
				wantFit(t, m, fmt.Sprint(width, "x", height, ", lost"))
			}
		}
	}
}

func wantFit(t *testing.T, m Model, what string) {
	t.Helper()
	lines := strings.Split(m.View().Content, "\n")
	if len(lines) != m.height {
		t.Fatalf("%s: %d lines", what, len(lines))
	}
	for _, l := range lines {
		if w := ansi.StringWidth(l); w > m.width {
			t.Fatalf("%s: a line of %d cells: %q", what, w, ansi.Strip(l))
		}
	}
}

// Names and reasons come from other programs: they must not move the cursor or
// colour the screen.
func TestControlCharactersAreNotShown(t *testing.T) {
	s := statustest.BusyHost(2, 9, 0)
	evil := "\x1b[2Jx\x07\n\u009b31m"
	s.Host, s.Held = evil, evil
	s.Guests[0].Name, s.Guests[7].Drift = evil, []string{evil}
	s.Sample.Guests[0].Name, s.Sample.Guests[7].MemorySource = evil, evil
	s.Alarms[0].Why, s.Alarms[0].Object = evil, inventory.GuestRef(evil)
	s.Advice[0].Move.Why, s.Advice[0].ID = evil, evil
	s.Moving[0].Step, s.Competitors[0].What = evil, evil
	s.Fleet = &status.Fleet{Server: evil, Host: evil, Why: evil}
	m := after(t, New(nil, time.Second, noon), tea.WindowSizeMsg{Width: 200, Height: 60},
		statusMsg{status: s, at: noon})
	for _, pressed := range [][]string{nil, {"enter"}, {"tab", "enter"}, {"tab", "tab", "enter"}, {"tab", "tab", "a"},
		{"tab", "tab", "tab", "enter"}, {"tab", "tab", "tab", "tab", "enter"}} {
		m := after(t, m, keys(pressed...)...)
		content := m.View().Content
		for _, bad := range []string{"\x1b[2J", "\x07", "\u009b"} {
			if strings.Contains(content, bad) {
				t.Errorf("after keys %v the picture contains %q", pressed, bad)
			}
		}
		if n := strings.Count(content, "\n"); n != 59 {
			t.Errorf("after keys %v the picture has %d lines", pressed, n+1)
		}
	}
}

// All that colour shows is also in words or signs.
func TestPicture_ShowsProblemsWithoutColour(t *testing.T) {
	m := seeing(t, nil, 200, 80, 8, 43, 10)
	text := ansi.Strip(m.View().Content)
	for _, want := range []string{"1 critical", "1 warning", "degraded 3m", "drift", "moving 50%", "blocked",
		"cooldown",
		"!build7", "1 !", "competitor kernel NUMA balancing", "0% est", "70% pmu", "advise", "shutoff"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in the picture:\n%s", want, text)
		}
	}
}

func TestPicture_LostDaemon(t *testing.T) {
	m := seeing(t, nil, 100, 30, 8, 43, 10)
	m = after(t, m, statusMsg{err: errors.New("connection refused"), at: noon.Add(15 * time.Second)},
		tickMsg(noon.Add(40*time.Second)))
	text := m.View().Content
	if want := "DAEMON LOST for 25s; the picture is 30s old; retrying: connection refused"; !strings.Contains(
		ansi.Strip(text),
		want,
	) {
		t.Errorf("%q is not in the picture:\n%s", want, ansi.Strip(text))
	}
	lines := strings.Split(text, "\n")
	if body := lines[len(lines)/2]; !strings.HasPrefix(body, "\x1b[2m") ||
		!strings.Contains(ansi.Strip(text), "build7") {
		t.Errorf("the last picture is not shown greyed: %q", body)
	}
	m = after(t, m, statusMsg{status: statustest.BusyHost(8, 43, 41), at: noon.Add(41 * time.Second)})
	if text := m.View().Content; strings.Contains(text, "LOST") {
		t.Errorf("the daemon is back, but the picture says that it is lost:\n%s", text)
	}
}

func TestPicture_OldSample(t *testing.T) {
	m := after(t, New(nil, time.Second, noon),
		statusMsg{status: statustest.BusyHost(2, 3, 0), at: noon.Add(35 * time.Second)})
	if want := "its last sample is 35s old"; !strings.Contains(m.View().Content, want) {
		t.Errorf("%q is not in the picture:\n%s", want, m.View().Content)
	}
	lines := strings.Split(m.View().Content, "\n")
	if body := lines[len(lines)/2]; !strings.HasPrefix(body, "\x1b[2m") {
		t.Errorf("the old picture is not shown greyed: %q", body)
	}
}

func TestPicture_NoSample(t *testing.T) {
	m := after(t, New(nil, time.Second, noon), statusMsg{status: status.Status{Host: "h1", Mode: "auto"}, at: noon})
	if text := m.View().Content; !strings.Contains(text, "has not taken a sample yet") ||
		strings.Contains(text, " old") {
		t.Errorf("the picture is\n%s", text)
	}
}

func TestAlarmsHaveUnits(t *testing.T) {
	m := after(t, seeing(t, nil, 80, 40, 8, 43, 10), keys("tab", "tab", "tab")...)
	for _, pressed := range []string{"", "enter"} {
		if pressed != "" {
			m = after(t, m, keys(pressed)...)
		}
		if text := pictured(m); !strings.Contains(text, "70.0 %") || !strings.Contains(text, "30.0 %") {
			t.Errorf("after %q the picture is\n%s", pressed, text)
		}
	}
}

// A name that reverses the writing direction would reverse the rest of its
// line, too.
func TestPicture_NamesDoNotReverseTheLine(t *testing.T) {
	s := statustest.BusyHost(2, 9, 0)
	s.Guests[0].Name = "a\u202eb\u2066c\u200fd"
	m := after(t, New(nil, time.Second, noon), tea.WindowSizeMsg{Width: 200, Height: 60},
		statusMsg{status: s, at: noon})
	if text := m.View().Content; strings.ContainsAny(text, "\u202e\u2066\u200f") || !strings.Contains(text, "a b c d") {
		t.Errorf("the picture is %q", text)
	}
}

func TestBeforeTheFirstStatus(t *testing.T) {
	m := New(nil, time.Second, noon)
	wantFit(t, m, "nothing yet")
	m = after(t, m, statusMsg{err: errors.New("no such socket"), at: noon})
	if text := ansi.Strip(m.View().Content); !strings.Contains(text, "does not answer") ||
		!strings.Contains(text, "no such socket") {
		t.Errorf("the picture is\n%s", text)
	}
	m = after(t, m, keys("enter", "tab", "s", "S", "a", "c", "p", "down", "/", "x", "enter", "?")...)
	wantFit(t, m, "nothing yet, after every key")
}

func BenchmarkPicture200Guests(b *testing.B) {
	m := seeing(b, nil, 200, 50, 8, 200, 300)
	for b.Loop() {
		if m.View().Content == "" {
			b.Fatal("no picture")
		}
	}
}

// Before a host has copied memory, how long copying takes is not known.
func TestAdvice_GivesNoTimeThatNothingHasShown(t *testing.T) {
	s := statustest.BusyHost(4, 9, 0)
	s.Advice[0].Move.Cost.RateMeasured = false
	m := after(t, New(nil, time.Second, noon), tea.WindowSizeMsg{Width: 200, Height: 50},
		statusMsg{status: s, at: noon})
	if text := pictured(m); !strings.Contains(text, "1.35 CPUs   24G     -    2m") {
		t.Errorf("TAKES of the advice in\n%s", text)
	}
	text := pictured(after(t, m, keys("tab", "tab", "enter")...))
	if !strings.Contains(text, "24 GiB to copy (time unknown: nothing copied on this host yet)") {
		t.Errorf("the advice is\n%s", text)
	}
}

// shownWith is the picture of a busy host after a change to its status.
func shownWith(t *testing.T, width int, now time.Time, change func(*status.Status)) string {
	t.Helper()
	s := statustest.BusyHost(4, 9, 0)
	change(&s)
	return pictured(after(t, New(nil, time.Second, noon), tea.WindowSizeMsg{Width: width, Height: 40},
		statusMsg{status: s, at: noon}, tickMsg(now)))
}

func TestNodes_MemoryIsNeverCut(t *testing.T) {
	for _, width := range []int{80, 200} {
		text := shownWith(t, width, noon, func(s *status.Status) {
			s.Sample.Nodes[0].Memory, s.Sample.Nodes[0].Free = 1000*topology.MiB, 412*topology.MiB
		})
		if !strings.Contains(text, " 588M/1.0G ") {
			t.Errorf("%d columns: memory of node 0 in\n%s", width, text)
		}
	}
}

func TestHeader_PauseIsNotRoundedDown(t *testing.T) {
	for left, want := range map[time.Duration]string{
		2*time.Hour - 2*time.Second:                 "PAUSED for 2h ",
		2 * time.Hour:                               "PAUSED for 2h ",
		time.Hour + 30*time.Minute + 10*time.Second: "PAUSED for 1h31m ",
		12*time.Minute - time.Second:                "PAUSED for 12m ",
		29*time.Second + 500*time.Millisecond:       "PAUSED for 30s ",
	} {
		text := shownWith(t, 80, noon, func(s *status.Status) { s.Pause = &status.Pause{Until: noon.Add(left)} })
		if !strings.Contains(text, want) {
			t.Errorf("%v: %q is not in the picture:\n%s", left, want, text)
		}
	}
}

// The age of the picture shows also where a pause fills the line.
func TestHeader_ShowsTheAgeOfThePicture(t *testing.T) {
	paused := func(s *status.Status) {
		s.Pause = &status.Pause{Until: noon.Add(2 * time.Hour), Why: "kernel update of the whole rack"}
	}
	for after, want := range map[time.Duration]string{0: "  12:00:00\n", 5 * time.Second: "  12:00:05\n",
		7 * time.Second: "  7s old\n"} {
		text := shownWith(t, 80, noon.Add(after), paused)
		if first, _, _ := strings.Cut(text, "\n"); !strings.HasSuffix(first+"\n", want) {
			t.Errorf("after %v the header is %q, want %q at its end", after, first, want)
		}
	}
}

// A move of memory alone, or of vCPUs alone, says which, and where that is now.
func TestAdvice_SaysWhatMoves(t *testing.T) {
	nodes := topology.MustParseSet[topology.NodeID]
	undo := plan.Undo{VCPUNodes: nodes("3"), Memory: topology.MemoryByNode{0: topology.GiB, 3: topology.MiB}}
	for _, c := range []struct {
		kind plan.MoveKind
		to   string
		want string
	}{
		{plan.FetchLocal, "3", "mem 0>3"}, {plan.Repin, "1", "cpu 3>1"}, {plan.MoveGuest, "1", "3 > 1"},
	} {
		one := plan.GuestMove{Guest: "g", Placement: guest.Placement{Nodes: nodes(c.to)}, Undo: undo}
		if got := journeys(plan.Move{Kind: c.kind, Guests: []plan.GuestMove{one}}); got != c.want {
			t.Errorf("%s: %q, want %q", c.kind, got, c.want)
		}
		one.Kind = c.kind
		if got := journeys(plan.Move{Kind: plan.Batch, Guests: []plan.GuestMove{one}}); got != c.want {
			t.Errorf("%s as part of a batch: %q, want %q", c.kind, got, c.want)
		}
	}
}

// Where states do not fit, the first stays whole.
func TestVMs_StatesAreNotCut(t *testing.T) {
	text := shownWith(t, 80, noon, func(*status.Status) {})
	if !strings.Contains(text, "degraded 3m +\n") {
		t.Errorf("the state of build7 in\n%s", text)
	}
}

func TestHelp_FitsInto80Columns(t *testing.T) {
	for _, l := range helpLines() {
		if w := ansi.StringWidth(l); w > 80 {
			t.Errorf("%d columns: %s", w, ansi.Strip(l))
		}
	}
}

// What the daemon took to start says nothing about what it takes.
func TestHeader_HasNoCPUShareOfADaemonThatHasJustStarted(t *testing.T) {
	s := statustest.BusyHost(2, 3, 0)
	s.Started, s.Self.CPU = s.Sample.Taken.Add(-time.Millisecond), 80*time.Millisecond
	if got := ansi.Strip(Plain(&s, s.Sample.Taken, 120)); strings.Contains(got, "% CPU") || !strings.Contains(got, "daemon ") {
		t.Errorf("a millisecond after the start:\n%s", got)
	}
	s.Started = s.Sample.Taken.Add(-20 * time.Second)
	if got := ansi.Strip(Plain(&s, s.Sample.Taken, 120)); !strings.Contains(got, "daemon 0.4% CPU") {
		t.Errorf("20 seconds after the start:\n%s", got)
	}
}

func TestHeader_SaysWhetherTheFleetIsReached(t *testing.T) {
	member := func(connected bool) func(*status.Status) {
		return func(s *status.Status) {
			s.Fleet = &status.Fleet{Server: "https://fleet:8443", Host: "h7", Connected: connected,
				Since: noon.Add(-3 * time.Minute), Why: "no route"}
		}
	}
	for _, c := range []struct {
		change func(*status.Status)
		want   string
	}{
		{func(*status.Status) {}, ""},
		{member(true), "host h7 of the fleet of https://fleet:8443: connected for 3m\n"},
		{member(false), "host h7 of the fleet of https://fleet:8443: NOT CONNECTED for 3m: no route\n"},
	} {
		got := shownWith(t, 120, noon, c.change)
		if c.want == "" && strings.Contains(got, "of the fleet") || !strings.Contains(unpadded(got), c.want) {
			t.Errorf("want %q in:\n%s", c.want, got)
		}
	}
}

// unpadded removes blanks at the ends of lines.
func unpadded(picture string) string {
	var out strings.Builder
	for line := range strings.Lines(picture) {
		out.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return out.String()
}

// mirroredHost is a host whose only VM is a mirrored one.
func mirroredHost(second int) status.Status {
	s := statustest.BusyHost(2, 1, second)
	g := &s.Sample.Guests[0]
	g.Load.Wait, g.Load.Ungranted = 0, 1.25
	g.HandedOver = &inventory.HandedOver{CPUs: topology.SetOf[topology.CPUID](0, 1, 8), Min: 2, Weight: 100,
		Demand: new(4.5), Means: "partition", Taken: 12, Refused: 1, Misbehaved: 2, MisbehavedAt: noon}
	for range 99 {
		g.HandedOver.Times.Add(4 * time.Millisecond)
	}
	g.HandedOver.Times.Add(time.Minute)
	s.Guests[0].VCPUs = 14
	return s
}

// The table shows how many vCPUs a VM uses whose number of vCPUs follows its demand, the details say which.
func TestAScaledVM(t *testing.T) {
	s := statustest.BusyHost(2, 1, 0)
	s.Guests[0].VCPUs = 14
	s.Sample.Guests[0].Scaled = &inventory.Scaled{Used: topology.SetOf[guest.VCPUID](0, 1, 8), Min: 2, Weight: 100,
		Demand: new(2.5), Means: "partition"}
	m := after(t, New(nil, time.Second, noon), tea.WindowSizeMsg{Width: 120, Height: 60},
		statusMsg{status: s, at: s.Sample.Taken})
	if text := pictured(m); !strings.Contains(text, "uses 3 of 14") {
		t.Errorf("the table is\n%s", text)
	}
	m = after(t, m, keys("enter")...)
	for _, want := range []string{"vCPUs         uses 3 (0-1,8), demands 2.5; at least 2, weight 100",
		"agent         its agent frees vCPUs by means partition"} {
		if text := pictured(m); !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// The table shows how many CPUs a mirrored VM has, the details show all of its hand-overs.
func TestAMirroredVM(t *testing.T) {
	m := New(nil, time.Second, noon)
	show := func(s status.Status) string {
		t.Helper()
		m = after(t, m, tea.WindowSizeMsg{Width: 120, Height: 60}, statusMsg{status: s, at: s.Sample.Taken})
		return pictured(m)
	}
	if text := show(mirroredHost(0)); !strings.Contains(text, "has 3 of 14") {
		t.Errorf("the table is\n%s", text)
	}
	m = after(t, m, keys("enter")...)
	wants := func(text string, lines ...string) {
		t.Helper()
		for _, want := range lines {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	}
	wants(show(mirroredHost(1)),
		"hand-over     has 3 CPUs (CPUs 0-1,8), demands 4.5; at least 2, weight 100",
		"agent         its agent frees vCPUs by means partition", "taken         12 CPUs",
		"releases      100, median under 5ms, 99 % under 5ms; refused 1",
		"misbehaved    2 vCPUs ran after", "ungranted     1.25 CPUs")
	s := mirroredHost(2)
	s.Sample.Guests[0].HandedOver = &inventory.HandedOver{Min: 1}
	wants(show(s), "its demand is unknown", "no agent has reported", "releases      none was asked for")
	s = mirroredHost(3)
	s.Sample.Guests[0].HandedOver.Times.Add(time.Minute)
	wants(show(s), "99 % over 1 s")
	m = after(t, m, keys("esc")...)
	s = mirroredHost(4)
	s.Sample.Guests[0].HandedOver.Silent = true
	wants(show(s), "no agent")
}
