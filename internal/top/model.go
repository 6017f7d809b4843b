package top

import (
	"context"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/numavisor/numavisor/internal/status"
)

// pane is one of the tables of the main screen.
type pane int

const (
	nodesPane pane = iota
	guestsPane
	movingPane
	advicePane
	alarmsPane
	panes
)

// focus is the operator's state of one pane: the selected row, and the sorting
// and filtering of rows.
type focus struct {
	key    string // of the selected row; empty: the first
	index  int    // its last position, for when the row is gone
	by     sorting
	filter string
}

// screen is the receiver of the keys.
type screen int

const (
	overview screen = iota
	details         // details of one row
	help
)

// Model is the state of the picture. The zero Model shows nothing; see New.
type Model struct {
	daemon   Daemon
	interval time.Duration

	now           time.Time
	width, height int

	status  *status.Status // latest picture; nil: none yet
	got     time.Time      // time of the latest picture
	lost    error          // the reason why the daemon does not answer; nil: it does
	lostAt  time.Time
	waiting bool // an answer is awaited
	seen    []moment

	pane    pane
	focuses [panes]focus
	screen  screen
	scroll  int // first line of details or help

	ask  *question // waits for y or n
	line *line     // a line being typed
	note note      // outcome of the last order
}

// note is shown for a while below the picture.
type note struct {
	text string
	tone tone
	at   time.Time
}

// noteSpan is how long a note is shown.
const noteSpan = 10 * time.Second

// question is an order that waits for a yes.
type question struct {
	title string
	lines []string
	done  string // text to show after the order succeeded
	do    func(context.Context, Daemon) error
}

// New returns the view of a daemon, with the interval between requests for its
// status.
func New(d Daemon, interval time.Duration, now time.Time) Model {
	m := Model{daemon: d, interval: interval, now: now, width: 80, height: 24, pane: guestsPane, waiting: true}
	m.focuses[guestsPane].by.column = 3 // the guest with the highest CPU demand
	m.focuses[alarmsPane].by.column = 2 // the most severe
	return m
}

// Init asks for the first status and starts the clock.
func (m Model) Init() tea.Cmd { return tea.Batch(m.fetch(), m.tick()) }

// The messages in addition to the library's own.
type (
	tickMsg   time.Time
	statusMsg struct {
		status status.Status
		err    error
		at     time.Time
	}
	// doneMsg is the outcome of an order.
	doneMsg struct {
		done string
		err  error
		at   time.Time
	}
)

// answerTime limits how long the daemon may take to answer.
const answerTime = 5 * time.Second

func (m Model) tick() tea.Cmd {
	return tea.Tick(m.interval, func(t time.Time) tea.Msg { return tickMsg(t) })
}

func (m Model) fetch() tea.Cmd {
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(context.Background(), answerTime)
		defer cancel()
		s, err := m.daemon.Status(ctx)
		return statusMsg{s, err, time.Now()}
	}
}

func (m Model) order(q *question) tea.Cmd {
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(context.Background(), answerTime)
		defer cancel()
		return doneMsg{q.done, q.do(ctx, m.daemon), time.Now()}
	}
}

// tables returns the panes' contents in the order of the panes.
func (m Model) tables() [panes]table {
	if m.status == nil {
		return [panes]table{}
	}
	return [panes]table{
		nodesPane:  nodeTable(m.status, m.seen),
		guestsPane: guestTable(m.status, m.seen, m.now),
		movingPane: movingTable(m.status),
		advicePane: adviceTable(m.status, m.now),
		alarmsPane: alarmTable(m.status, m.now),
	}
}

// chosen returns the selected row of a pane, and its position.
func (f *focus) chosen(rows []row) (at int, ok bool) {
	if len(rows) == 0 {
		return 0, false
	}
	if f.key == "" {
		return 0, true
	}
	for i, r := range rows {
		if r.key == f.key {
			return i, true
		}
	}
	return min(f.index, len(rows)-1), true
}

// current returns the key of the selected row of the focused pane.
func (m Model) current() (key string, ok bool) {
	t := m.tables()[m.pane]
	f := m.focuses[m.pane]
	rows := t.arranged(f.by, f.filter)
	at, ok := f.chosen(rows)
	if !ok {
		return "", false
	}
	return rows[at].key, true
}

// picture is the latest status; an empty one before the first.
func (m Model) picture() *status.Status {
	if m.status == nil {
		return &status.Status{}
	}
	return m.status
}
