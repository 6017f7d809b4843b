package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/numavisor/numavisor/internal/status"
)

// Run shows a daemon in the terminal until the operator quits or ctx ends. in
// and out are the terminal; Run requests the daemon's status every interval.
func Run(ctx context.Context, d Daemon, interval time.Duration, in io.Reader, out io.Writer) error {
	p := tea.NewProgram(New(d, interval, time.Now()), tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out),
		tea.WithEnvironment(os.Environ()))
	if _, err := p.Run(); err != nil && ctx.Err() == nil && !errors.Is(err, tea.ErrInterrupted) {
		return fmt.Errorf("showing the daemon in the terminal: %w; 'numavisor top --once' needs no terminal", err)
	}
	return nil
}

// Plain returns one picture with every row, as plain text of that width.
func Plain(s *status.Status, now time.Time, width int) string {
	m := New(nil, 0, now)
	m.width = width
	m = m.received(statusMsg{status: *s, at: now})
	m.seen = nil // one moment makes no trend
	lines := m.header()
	for p, t := range m.tables() {
		if len(t.rows) == 0 {
			continue
		}
		t.columns, t.rows = withoutTrend(t)
		widths := t.widths(width)
		by := m.focuses[p].by
		rows := t.arranged(by, "")
		lines = append(lines, "", t.heading(widths, by, fmt.Sprint(len(rows))))
		for _, r := range rows {
			lines = append(lines, t.line(r, widths, false))
		}
	}
	for i := range lines {
		lines[i] = strings.TrimRight(ansi.Truncate(ansi.Strip(lines[i]), width, ""), " ")
	}
	return strings.Join(lines, "\n") + "\n"
}

// withoutTrend removes the last column if it is a sparkline.
func withoutTrend(t table) ([]column, []row) {
	last := len(t.columns) - 1
	if t.columns[last].title != trendTitle {
		return t.columns, t.rows
	}
	rows := make([]row, len(t.rows))
	for i, r := range t.rows {
		rows[i] = row{r.key, r.cells[:last]}
	}
	return t.columns[:last], rows
}
