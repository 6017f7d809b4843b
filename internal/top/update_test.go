package top

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/status/statustest"
)

// heard is a daemon that records its orders.
type heard struct {
	orders []string
	fails  error
}

func (h *heard) Status(context.Context) (status.Status, error) {
	return statustest.BusyHost(2, 9, 0), h.fails
}
func (h *heard) Accept(_ context.Context, id string) error { return h.order("accept " + id) }
func (h *heard) Cancel(_ context.Context, id string) error { return h.order("cancel " + id) }
func (h *heard) Resume(context.Context) error              { return h.order("resume") }
func (h *heard) Pause(_ context.Context, length time.Duration, why string) error {
	return h.order(fmt.Sprintf("pause %v %q", length, why))
}

func (h *heard) order(what string) error {
	h.orders = append(h.orders, what)
	return h.fails
}

// carriedOut sends messages and runs the command of the last one.
func carriedOut(t *testing.T, m Model, msgs ...tea.Msg) Model {
	t.Helper()
	for i, msg := range msgs {
		next, cmd := m.Update(msg)
		m = next.(Model)
		if i == len(msgs)-1 && cmd != nil {
			m = after(t, m, cmd())
		}
	}
	return m
}

func TestKeysGiveOrders(t *testing.T) {
	for _, c := range []struct {
		keys []string
		want []string
	}{
		{[]string{"tab", "tab", "a", "y"}, []string{"accept a7"}},
		{[]string{"tab", "tab", "a", "n"}, nil},
		{[]string{"tab", "tab", "a", "enter"}, nil}, // only y is yes
		{[]string{"tab", "c", "y"}, []string{"cancel m42"}},
		{[]string{"tab", "c", "esc"}, nil},
		{[]string{"/", "build7", "enter", "a", "y"}, []string{"accept a7"}}, // the recommended move of the selected VM
		{[]string{"/", "moving", "enter", "c", "y"}, []string{"cancel m42"}},
		{[]string{"/", "moving", "enter", "a", "y"}, nil}, // the VM has none
		{[]string{"/", "web0", "enter", "c", "y"}, nil},
		{[]string{"tab", "tab", "enter", "a", "y"}, []string{"accept a7"}}, // from its details
		{[]string{"p", "30m kernel update", "enter", "y"}, []string{`pause 30m0s "kernel update"`}},
		{[]string{"p", "enter", "y"}, []string{`pause 0s "by hand, from top"`}},
		{[]string{"p", "new disks", "enter", "y"}, []string{`pause 0s "new disks"`}},
		{[]string{"p", "-5m", "enter", "y"}, nil},
		{[]string{"p", "30m", "esc", "y"}, nil},
		{[]string{"p", "30m", "enter", "n"}, nil},
	} {
		daemon := &heard{}
		m := seeing(t, daemon, 80, 24, 8, 43, 4)
		m = carriedOut(t, m, keys(c.keys...)...)
		if diff := cmp.Diff(c.want, daemon.orders); diff != "" {
			t.Errorf("orders of keys %v (-want +got):\n%s", c.keys, diff)
		}
		if m.ask != nil || m.line != nil {
			t.Errorf("keys %v leave a question open", c.keys)
		}
	}
}

func TestAPausedHostIsResumed(t *testing.T) {
	daemon := &heard{}
	s := statustest.BusyHost(2, 9, 0)
	s.Pause = &status.Pause{Since: noon, Why: "kernel update"}
	m := after(t, New(daemon, time.Second, noon), statusMsg{status: s, at: noon})
	carriedOut(t, m, keys("p", "y")...)
	if diff := cmp.Diff([]string{"resume"}, daemon.orders); diff != "" {
		t.Errorf("orders (-want +got):\n%s", diff)
	}
}

func TestOrder_FailureIsShown(t *testing.T) {
	m := seeing(t, &heard{fails: errors.New("the guest is gone")}, 80, 24, 8, 43, 4)
	m = carriedOut(t, m, keys("tab", "tab", "a", "y")...)
	if text := strings.Join(m.footer(), " "); !strings.Contains(text, "failed: the guest is gone") {
		t.Errorf("the footer is %q", text)
	}
	m = after(t, m, tickMsg(m.note.at.Add(noteSpan)))
	if text := strings.Join(m.footer(), " "); strings.Contains(text, "failed") {
		t.Errorf("after %v the footer is still %q", noteSpan, text)
	}
}

// The reason why an order failed is shown completely, on as many lines as
// necessary.
func TestOrder_LongReasonIsShownCompletely(t *testing.T) {
	why := "guest build7 has 24 GiB in 1 GiB pages, of which node 7 has 3 free; grow the pool of node 7 or take " +
		"another node, last words"
	m := seeing(t, &heard{fails: errors.New(why)}, 60, 24, 8, 43, 4)
	m = carriedOut(t, m, keys("tab", "tab", "a", "y")...)
	if text := strings.Join(strings.Fields(pictured(m)), " "); !strings.Contains(text, "failed: "+why) {
		t.Errorf("the picture does not contain %q:\n%s", why, pictured(m))
	}
	wantFit(t, m, "a long reason")
}

// Input is visible at the cursor, however narrow the screen.
func TestLine_CursorIsVisible(t *testing.T) {
	m := seeing(t, &heard{}, 40, 24, 8, 43, 4)
	m = after(t, m, keys("p", "30m new disks 数据")...)
	if lines := strings.Split(pictured(m), "\n"); !strings.HasSuffix(lines[23], "30m new disks 数据▏") {
		t.Errorf("the last line is %q", lines[23])
	}
	wantFit(t, m, "a line being typed")
}

func TestLine_Paste(t *testing.T) {
	m := seeing(t, &heard{}, 80, 24, 8, 43, 4)
	m = after(t, m, tea.PasteMsg{Content: "y"}) // while no input is open
	m = after(t, m, keys("/")...)
	m = after(t, m, tea.PasteMsg{Content: "build7"})
	if text := pictured(m); m.line.text != "build7" || strings.Contains(text, "build27") ||
		!strings.Contains(text, "!build7") {
		t.Errorf("the filter is %q:\n%s", m.line.text, text)
	}
}

func TestStatus_OneRequestAtATime(t *testing.T) {
	m := New(&heard{}, time.Second, noon)
	for range 3 { // the daemon does not answer
		m = after(t, m, tickMsg(noon))
		if !m.waiting {
			t.Fatal("no status was requested")
		}
	}
	m = after(t, m, statusMsg{err: errors.New("late"), at: noon})
	next, cmd := m.Update(tickMsg(noon.Add(time.Second)))
	if !next.(Model).waiting || cmd == nil {
		t.Error("a lost daemon is not asked again")
	}
}

func TestSelection_StaysOnItsRow(t *testing.T) {
	m := seeing(t, nil, 80, 24, 8, 43, 4)
	m = after(t, m, keys("down", "down", "down")...)
	before, _ := m.current()
	for s := 20; s < 200; s += 20 { // CPU demands change, and with them the order
		m = after(t, m, statusMsg{status: statustest.BusyHost(8, 43, s), at: noon.Add(time.Duration(s) * time.Second)})
		if now, _ := m.current(); now != before {
			t.Fatalf("after %d s the selected row is %s, was %s", s, now, before)
		}
	}
	m = after(t, m, keys("S", "s", "s")...)
	if now, _ := m.current(); now != before {
		t.Errorf("after sorting the selected row is %s, was %s", now, before)
	}
	s := statustest.BusyHost(8, 43, 220)
	s.Guests = slices.DeleteFunc(s.Guests, func(g status.Guest) bool { return g.Name == before })
	m = after(t, m, statusMsg{status: s, at: noon.Add(220 * time.Second)})
	if now, ok := m.current(); !ok || now == before {
		t.Errorf("the selected guest is gone, and the selected row is %q", now)
	}
}

func TestSort_EveryColumn(t *testing.T) {
	m := seeing(t, nil, 200, 50, 8, 43, 4)
	seen := map[int]bool{}
	for range guestColumns {
		by := m.focuses[guestsPane].by
		seen[by.column] = true
		t1 := m.tables()[guestsPane]
		rows := t1.arranged(by, "")
		for i := 1; i < len(rows); i++ {
			a, b := rows[i-1].cells[by.column].order, rows[i].cells[by.column].order
			if t1.columns[by.column].high != by.reverse && a < b || t1.columns[by.column].high == by.reverse && a > b {
				t.Errorf("by %s: %v is before %v", t1.columns[by.column].title, a, b)
			}
		}
		m = after(t, m, keys("s")...)
	}
	for i, c := range guestColumns {
		if seen[i] == c.fixed {
			t.Errorf("column %s: sorted by is %v", c.title, seen[i])
		}
	}
}

func TestTab_SkipsEmptyPanes(t *testing.T) {
	s := statustest.BusyHost(2, 9, 0)
	s.Moving, s.Advice = nil, nil
	m := after(t, New(nil, time.Second, noon), statusMsg{status: s, at: noon})
	var went []pane
	for range 3 {
		m = after(t, m, keys("tab")...)
		went = append(went, m.pane)
	}
	if diff := cmp.Diff([]pane{alarmsPane, nodesPane, guestsPane}, went); diff != "" {
		t.Errorf("tab goes to (-want +got):\n%s", diff)
	}
}

func TestFocus_LeavesAnEmptyPane(t *testing.T) {
	m := seeing(t, nil, 80, 24, 8, 43, 4)
	m = after(t, m, keys("tab", "enter")...) // details of the move
	s := statustest.BusyHost(8, 43, 6)
	s.Moving = nil
	m = after(t, m, statusMsg{status: s, at: noon.Add(6 * time.Second)})
	if m.pane != guestsPane || m.screen != overview {
		t.Errorf("pane %d, screen %d", m.pane, m.screen)
	}
}

// Update never changes a model that was passed on: it is a function.
func TestUpdate_DoesNotChangeTheOldModel(t *testing.T) {
	m := seeing(t, nil, 80, 24, 8, 43, 20)
	picture, moments := m.View().Content, len(m.seen)
	msgs := append(
		keys("down", "s", "S", "tab", "enter", "down", "esc", "/", "a", "backspace", "enter", "tab", "a", "n", "p", "x",
			"esc", "?"),
		statusMsg{
			status: statustest.BusyHost(8, 43, 50),
			at:     noon.Add(50 * time.Second),
		},
		tickMsg(noon.Add(time.Hour)),
		tea.WindowSizeMsg{Width: 50, Height: 10},
	)
	for _, msg := range msgs {
		after(t, m, msg)
	}
	after(t, m, msgs...)
	if m.View().Content != picture || len(m.seen) != moments {
		t.Error("the old model now gives another picture")
	}
}

func TestTrend_DropsOldMomentsAndRestarts(t *testing.T) {
	var seen []moment
	for s := 0; s <= 600; s += 2 {
		st := statustest.BusyHost(2, 9, s)
		seen = remember(seen, &st)
		seen = remember(seen, &st) // the same sample again
	}
	if got, want := len(seen), int(trendSpan/(2*time.Second))+1; got != want {
		t.Errorf("%d moments, want %d", got, want)
	}
	back := statustest.BusyHost(2, 9, 100)
	if seen = remember(seen, &back); len(seen) != 1 {
		t.Errorf("%d moments after the clock was set back, want 1", len(seen))
	}
	later := statustest.BusyHost(2, 9, 5000)
	if seen = remember(seen, &later); len(seen) != 1 {
		t.Errorf("%d moments after an hour without any, want 1", len(seen))
	}
}

func TestTrend(t *testing.T) {
	at := func(s int, v float64) moment {
		return moment{at: noon.Add(time.Duration(s) * time.Second), guests: map[string]guestMoment{"a": {demand: v}}}
	}
	seen := []moment{at(0, 1), at(100, 2), at(200, 4), at(201, 6), at(299, 8)}
	got := guestTrend(seen, "a", 3, func(m guestMoment) float64 { return m.demand })
	if diff := cmp.Diff([]float64{1, 2, 6}, got); diff != "" {
		t.Errorf("trend (-want +got):\n%s", diff)
	}
	got = guestTrend(seen, "b", 3, func(m guestMoment) float64 { return m.demand })
	if !math.IsNaN(got[0]) || sparkline(got, 1) != "   " {
		t.Errorf("an unknown guest has the trend %v", got)
	}
}

func TestDrawing(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{bar(0, 4), "    "}, {bar(1, 4), "████"}, {bar(2, 4), "████"}, {bar(0.5, 4), "██  "}, {bar(0.001, 4), "▏   "},
		{bar(math.NaN(), 2), "  "},
		{sparkline([]float64{0, 1, 2, 4}, 0), "▁▃▅█"}, {sparkline([]float64{0, 0}, 0),
			"▁▁"}, {sparkline([]float64{1, math.NaN()}, 8), "▂ "},
		{fit("abc", 2), "a…"}, {fit("é", 3), "é  "}, {fit("日本", 3), "日…"}, {fitRight("7%", 4), "  7%"},
		{short(1536 << 20), "1.5G"}, {short(16 << 30), "16G"}, {short(0), "0B"}, {short(1<<40 + 1<<39),
			"1.5T"}, {short(999 << 10), "999K"},
		{span(59 * time.Second), "59s"}, {span(-time.Second), "0s"}, {span(119 * time.Minute),
			"1h"}, {span(72 * time.Hour), "3d"},
		{length(30 * time.Minute), "30m"}, {length(2 * time.Hour), "2h"}, {length(90 * time.Minute),
			"1h30m"}, {length(90 * time.Second), "1m30s"}, {length(20 * time.Minute), "20m"}, {length(10 * time.Hour),
			"10h"}, {length(30 * time.Second), "30s"},
	} {
		if c.got != c.want {
			t.Errorf("drawn %q, want %q", c.got, c.want)
		}
	}
}
