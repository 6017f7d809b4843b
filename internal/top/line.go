package top

import (
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
)

// line is a line of input below the picture.
type line struct {
	prompt, text string
	// each is called with the text after every key, and with an empty text when
	// input is cancelled; enter when the line is complete. nil: nothing
	// happens.
	each, enter func(Model, string) Model
}

// drawn shows the line and the cursor; a long line loses its beginning.
func (l *line) drawn(width int) string {
	text := headStyle.Render(oneLine(l.prompt)) + oneLine(l.text) + "▏"
	if over := ansi.StringWidth(text) - width; over > 0 {
		return ansi.TruncateLeft(text, over+1, "…")
	}
	return text
}

// typed handles a key for the line.
func (m Model) typed(k tea.Key) (tea.Model, tea.Cmd) {
	l := *m.line
	switch k.String() {
	case "enter":
		m.line = nil
		return l.enter(m, l.text), nil
	case "esc":
		m.line = nil
		if l.each != nil {
			m = l.each(m, "")
		}
		return m, nil
	case "backspace":
		_, size := utf8.DecodeLastRuneInString(l.text)
		l.text = l.text[:len(l.text)-size]
	case "ctrl+u":
		l.text = ""
	default:
		l.text += k.Text
	}
	return m.edited(l.text), nil
}

// edited returns the line with another text.
func (m Model) edited(text string) Model {
	l := *m.line
	l.text = text
	m.line = &l
	if l.each != nil {
		m = l.each(m, text)
	}
	return m
}
