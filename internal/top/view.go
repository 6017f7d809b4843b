package top

import (
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
)

// View draws the model, exactly as many lines as the screen has.
func (m Model) View() tea.View {
	v := tea.NewView(strings.Join(m.lines(), "\n"))
	v.AltScreen = true
	v.WindowTitle = "numavisor top"
	if m.status != nil {
		v.WindowTitle += " " + oneLine(m.status.Host)
	}
	return v
}

// lines are header, body and footer, cut and filled to the screen.
func (m Model) lines() []string {
	lines := m.header()
	body := m.body()
	if m.ask == nil && m.screen != overview {
		body = body[max(0, min(m.scroll, len(body)-m.bodyHeight())):]
	}
	for i := range m.bodyHeight() {
		text := ""
		if i < len(body) {
			text = body[i]
		}
		if m.lost != nil || m.stale() {
			text = agedStyle.Render(ansi.Strip(text))
		}
		lines = append(lines, text)
	}
	lines = append(lines, m.footer()...)
	lines = lines[:min(len(lines), m.height)]
	for i := range lines {
		lines[i] = ansi.Truncate(lines[i], m.width, "…")
	}
	return lines
}

func (m Model) bodyHeight() int { return max(0, m.height-len(m.header())-len(m.footer())) }

// body is all lines between header and footer; details and help may have more
// lines than fit.
func (m Model) body() []string {
	switch {
	case m.ask != nil:
		return m.asking()
	case m.screen == help:
		return helpLines()
	case m.status == nil:
		return nil
	case m.screen == details:
		return m.inspected()
	}
	return m.overview()
}

// overview draws all panes that have rows.
func (m Model) overview() []string {
	tables := m.tables()
	var rows [panes][]row
	var want [panes]int
	for p := range tables {
		f := m.focuses[p]
		rows[p] = tables[p].arranged(f.by, f.filter)
		if len(tables[p].rows) > 0 || f.filter != "" {
			want[p] = 1 + len(rows[p])
		}
	}
	heights, gap := share(m.bodyHeight(), want, m.pane)
	var lines []string
	for p := range tables {
		if heights[p] == 0 {
			continue
		}
		if gap && len(lines) > 0 {
			lines = append(lines, "")
		}
		lines = append(lines, m.drawn(pane(p), &tables[p], rows[p], heights[p])...)
	}
	return lines
}

// share divides a number of lines between panes: first each gets its heading
// and a few rows, then the focused one as many as it needs, then the VMs, then
// the others. gap says that there is room for empty lines between them.
func share(lines int, want [panes]int, focus pane) (got [panes]int, gap bool) {
	all, open := 0, 0
	for _, w := range want {
		all += w
		if w > 0 {
			open++
		}
	}
	gap = lines >= 40 || all+open-1 <= lines
	if gap {
		lines -= max(0, open-1)
	}
	least := [panes]int{
		nodesPane:  max(4, lines/4),
		guestsPane: max(5, lines/3),
		movingPane: 3,
		advicePane: 3,
		alarmsPane: 2,
	}
	give := func(p pane, upTo int) {
		more := max(0, min(upTo-got[p], want[p]-got[p], lines))
		got[p] += more
		lines -= more
	}
	order := []pane{focus, guestsPane, nodesPane, movingPane, advicePane, alarmsPane}
	for _, p := range order {
		give(p, least[p])
	}
	for _, p := range order {
		give(p, want[p])
	}
	return got, gap
}

// drawn draws one pane over a number of lines, including its heading.
func (m Model) drawn(p pane, t *table, rows []row, height int) []string {
	f := m.focuses[p]
	width := m.width
	widths := t.widths(width)
	chosen, marked := f.chosen(rows)
	marked = marked && p == m.pane
	first, end := window(len(rows), height-1, chosen)
	heading := fit(t.heading(widths, f.by, shown(first, end, len(rows))), width)
	style := columnsStyle
	if p == m.pane {
		style = focusStyle
	}
	lines := []string{style.Render(heading)}
	for i := first; i < end; i++ {
		if marked && i == chosen {
			lines = append(lines, chosenStyle.Render(fit(t.line(rows[i], widths, false), width)))
			continue
		}
		lines = append(lines, t.line(rows[i], widths, true))
	}
	return lines
}

// asking draws a question.
func (m Model) asking() []string {
	lines := []string{"", headStyle.Render(m.ask.title), ""}
	for _, l := range m.ask.lines {
		lines = append(lines, wrapped(l, m.width, 14)...)
	}
	return append(lines, "", headStyle.Render("y: yes   any other key: no"))
}

// footer is below the body: the line of input, the outcome of an order, which
// may take several lines, or the keys.
func (m Model) footer() []string {
	switch {
	case m.ask == nil && m.line != nil:
		return []string{m.line.drawn(m.width)}
	case m.ask == nil && m.note.text != "" && m.now.Sub(m.note.at) < noteSpan:
		lines := wrapped(m.note.text, m.width, 2)
		lines = lines[:min(len(lines), max(1, m.height/4))]
		for i := range lines {
			lines[i] = m.note.tone.render(fit(lines[i], m.width))
		}
		return lines
	}
	return []string{m.keyLine()}
}

// keyLine lists the keys that have an effect now.
func (m Model) keyLine() string {
	switch {
	case m.ask != nil:
		return m.keys("y", "yes", "any other key", "no")
	case m.screen != overview:
		return m.keys("up/down", "scroll", "esc", "back", "a", "accept", "c", "cancel", "p", "pause", "q", "quit")
	}
	all := []string{"tab", "pane", "s", "sort", "/", "filter", "enter", "inspect", "a", "accept", "c", "cancel", "p",
		"pause", "?", "help", "q", "quit"}
	if f := m.focuses[m.pane].filter; f != "" {
		all = []string{"only", oneLine(f), "esc", "shows all", "tab", "pane", "s", "sort", "enter", "inspect", "?",
			"help"}
	}
	return m.keys(all...)
}

// keys shows keys and their effects, with wider gaps if there is room.
func (m Model) keys(texts ...string) string {
	var parts []string
	for i := 0; i < len(texts); i += 2 {
		parts = append(parts, headStyle.Render(texts[i])+" "+quiet.render(texts[i+1]))
	}
	if line := strings.Join(parts, "  "); ansi.StringWidth(line) <= m.width {
		return line
	}
	return strings.Join(parts, " ")
}
