package top

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Update returns the model after a message, and the request to the daemon.
func (m Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tickMsg:
		m.now = time.Time(msg)
		if m.waiting {
			return m, m.tick()
		}
		m.waiting = true
		return m, tea.Batch(m.fetch(), m.tick())
	case statusMsg:
		return m.received(msg), nil
	case doneMsg:
		m.now = msg.at
		m.note = note{msg.done, good, msg.at}
		if msg.err != nil {
			m.note = note{"failed: " + msg.err.Error(), bad, msg.at}
		}
		return m, m.fetch() // the outcome should be visible at once
	case tea.KeyPressMsg:
		return m.pressed(msg.Key())
	case tea.PasteMsg:
		if m.line != nil && m.ask == nil {
			return m.edited(m.line.text + msg.Content), nil
		}
	}
	return m, nil
}

// received handles an answer of the daemon, or its absence.
func (m Model) received(msg statusMsg) Model {
	m.waiting, m.now = false, msg.at
	if msg.err != nil {
		if m.lost == nil {
			m.lostAt = msg.at
		}
		m.lost = msg.err
		return m
	}
	m.lost, m.got = nil, msg.at
	m.status = &msg.status
	m.seen = remember(m.seen, m.status)
	if len(m.tables()[m.pane].rows) == 0 && m.focuses[m.pane].filter == "" {
		m.pane = guestsPane
		if m.screen == details {
			m.screen = overview
		}
	}
	return m
}

func (m Model) pressed(k tea.Key) (tea.Model, tea.Cmd) {
	key := k.String()
	switch {
	case key == "ctrl+c":
		return m, tea.Quit
	case m.ask != nil:
		return m.answered(key)
	case m.line != nil:
		return m.typed(k)
	}
	switch key {
	case "q":
		return m, tea.Quit
	case "a":
		return m.askAccept(), nil
	case "c":
		return m.askCancel(), nil
	case "p":
		return m.pauseOrResume(), nil
	case "?":
		if m.screen == help {
			m.screen = overview
		} else {
			m.screen, m.scroll = help, 0
		}
		return m, nil
	}
	if m.screen != overview {
		return m.scrolled(key), nil
	}
	return m.browsed(key), nil
}

// answered handles the answer to a question; anything but yes is no.
func (m Model) answered(key string) (tea.Model, tea.Cmd) {
	q := m.ask
	m.ask = nil
	if key == "y" || key == "Y" {
		m.note = note{"asking the daemon ...", quiet, m.now}
		return m, m.order(q)
	}
	m.note = note{"nothing changed", quiet, m.now}
	return m, nil
}

// scrolled handles keys of the details and of the help.
func (m Model) scrolled(key string) Model {
	page := max(1, m.height-5)
	switch key {
	case "esc", "enter", "backspace", "left", "h":
		m.screen, m.scroll = overview, 0
		return m
	case "up", "k":
		m.scroll--
	case "down", "j":
		m.scroll++
	case "pgup":
		m.scroll -= page
	case "pgdown", "space":
		m.scroll += page
	case "home", "g":
		m.scroll = 0
	case "end", "G":
		m.scroll = len(m.body())
	}
	m.scroll = max(0, min(m.scroll, len(m.body())-m.bodyHeight()))
	return m
}

// browsed handles keys of the overview.
func (m Model) browsed(key string) Model {
	switch key {
	case "up", "k":
		return m.mark(-1)
	case "down", "j":
		return m.mark(1)
	case "pgup":
		return m.mark(-10)
	case "pgdown", "space":
		return m.mark(10)
	case "home", "g":
		return m.mark(-1 << 20)
	case "end", "G":
		return m.mark(1 << 20)
	case "tab", "right", "l":
		return m.turn(1)
	case "shift+tab", "left", "h":
		return m.turn(-1)
	case "s":
		return m.sortNext()
	case "S":
		m.focuses[m.pane].by.reverse = !m.focuses[m.pane].by.reverse
	case "/":
		m.line = &line{
			prompt: "filter " + m.tables()[m.pane].name + ": ",
			text:   m.focuses[m.pane].filter,
			each:   setFilter,
			enter:  setFilter,
		}
	case "esc":
		m.focuses[m.pane].filter = ""
	case "enter":
		if key, ok := m.current(); ok {
			m.focuses[m.pane].key = key
			m.screen, m.scroll = details, 0
		}
	}
	return m
}

// mark moves the selection by a number of rows.
func (m Model) mark(by int) Model {
	f := &m.focuses[m.pane]
	t := m.tables()[m.pane]
	rows := t.arranged(f.by, f.filter)
	at, ok := f.chosen(rows)
	if !ok {
		return m
	}
	f.index = max(0, min(at+by, len(rows)-1))
	f.key = rows[f.index].key
	return m
}

// turn goes to the next pane that has rows.
func (m Model) turn(by int) Model {
	tables := m.tables()
	for range panes {
		m.pane = (m.pane + pane(by) + panes) % panes
		if len(tables[m.pane].rows) > 0 || m.focuses[m.pane].filter != "" {
			return m
		}
	}
	return m
}

// sortNext sorts by the next column that is on the screen.
func (m Model) sortNext() Model {
	t := m.tables()[m.pane]
	if len(t.columns) == 0 {
		return m // no status yet
	}
	by := &m.focuses[m.pane].by
	widths := t.widths(m.width)
	for range t.columns {
		by.column = (by.column + 1) % len(t.columns)
		by.reverse = false
		if !t.columns[by.column].fixed && widths[by.column] >= 0 {
			break
		}
	}
	if t.columns[by.column].fixed {
		by.column = 0
	}
	return m
}

// setFilter applies a line as the filter of the focused pane.
func setFilter(m Model, text string) Model {
	m.focuses[m.pane].filter = strings.TrimSpace(text)
	m.focuses[m.pane].key = ""
	return m
}

// askAccept asks whether to make the selected recommended move, or that of the
// selected VM.
func (m Model) askAccept() Model {
	id := m.idAt(advicePane)
	for _, a := range m.picture().Advice {
		if a.ID == id {
			m.ask = &question{
				title: "Make this move?",
				lines: moveLines(a.Move),
				done:  "accepted: " + a.Move.String(),
				do:    func(ctx context.Context, d Daemon) error { return d.Accept(ctx, a.ID) },
			}
			return m
		}
	}
	m.note = note{"no recommended move is selected: go to the advice with tab", warn, m.now}
	return m
}

// askCancel asks whether to cancel the selected move in progress, or that of
// the selected VM.
func (m Model) askCancel() Model {
	id := m.idAt(movingPane)
	for _, v := range m.picture().Moving {
		if v.ID == id {
			m.ask = &question{
				title: "Cancel this move? The daemon rolls it back.",
				lines: append(
					[]string{fmt.Sprintf("%v of %v are copied.", min(v.Done, v.Total), v.Total)},
					moveLines(v.Move)...),
				done: "cancelled: " + v.Move.String(),
				do:   func(ctx context.Context, d Daemon) error { return d.Cancel(ctx, v.ID) },
			}
			return m
		}
	}
	m.note = note{"no move in progress is selected: go to the moves with tab", warn, m.now}
	return m
}

// idAt returns the key of the selected row if its pane is the given one, or
// that pane's entry for the selected guest; empty if there is none.
func (m Model) idAt(p pane) string {
	key, ok := m.current()
	if !ok || m.pane == p || m.pane != guestsPane {
		if m.pane == p {
			return key
		}
		return ""
	}
	vmStates := vmStates(m.status)
	i := slices.IndexFunc(vmStates, func(x vmState) bool { return x.Name == key })
	switch {
	case i < 0:
	case p == advicePane && vmStates[i].advice != nil:
		return vmStates[i].advice.ID
	case p == movingPane && vmStates[i].moving != nil:
		return vmStates[i].moving.ID
	}
	return ""
}

// pauseOrResume asks how long to pause, or whether to resume.
func (m Model) pauseOrResume() Model {
	switch {
	case m.status == nil:
		return m
	case m.status.Pause != nil:
		m.ask = &question{
			title: "Resume balancing?",
			lines: []string{"It is " + pauseText(m.status.Pause, m.now) + pauseReason(m.status.Pause) + "."},
			done:  "resumed",
			do:    func(ctx context.Context, d Daemon) error { return d.Resume(ctx) },
		}
	default:
		m.line = &line{prompt: "pause for (30m, 2h; empty: until resumed), and why: ", enter: askPause}
	}
	return m
}

// askPause reads "30m kernel update".
func askPause(m Model, text string) Model {
	first, why, _ := strings.Cut(strings.TrimSpace(text), " ")
	pause, err := time.ParseDuration(first)
	if err != nil { // no duration: all of it is the reason
		pause, why = 0, text
	}
	if pause < 0 {
		m.note = note{"failed: a pause of " + first + " has a length of 0 or less; write for example 30m", bad, m.now}
		return m
	}
	why = cmp.Or(strings.TrimSpace(why), "by hand, from top")
	until := "until resumed"
	if pause > 0 {
		until = "for " + length(pause)
	}
	m.ask = &question{
		title: "Pause all moves of this host " + until + "?",
		lines: []string{"Why: " + why + "."},
		done:  "paused " + until,
		do:    func(ctx context.Context, d Daemon) error { return d.Pause(ctx, pause, why) },
	}
	return m
}
