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

// focus is what the operator did to one pane: where the mark is, and how rows are chosen.
type focus struct {
	key    string // of the chosen row; empty: whichever is first
	index  int    // where it was last, for when it is gone
	by     sorting
	filter string
}

// screen is what the keys go to.
type screen int

const (
	overview screen = iota
	details         // all that is known of one row
	help
)

// Model is the state of the picture. The zero Model shows nothing; see New.
type Model struct {
	daemon   Daemon
	interval time.Duration

	now           time.Time
	width, height int

	status  *status.Status // latest picture; nil: none yet
	got     time.Time      // when it came
	lost    error          // why the daemon does not answer; nil: it does
	lostAt  time.Time
	waiting bool // an answer is on its way
	seen    []moment

	pane    pane
	focuses [panes]focus
	screen  screen
	scroll  int // first line of details or help

	ask  *question // waits for y or n
	line *line     // a line being typed
	note note      // what became of the last order
}

// note is told for a while below the picture.
type note struct {
	text string
	tone tone
	at   time.Time
}

// noteSpan is for how long it is told.
const noteSpan = 10 * time.Second

// question is an order that waits for a yes.
type question struct {
	title string
	lines []string
	done  string // what to tell when it has been carried out
	do    func(context.Context, Daemon) error
}

// New returns the view of a daemon that is asked for its status that often.
func New(d Daemon, interval time.Duration, now time.Time) Model {
	m := Model{daemon: d, interval: interval, now: now, width: 80, height: 24, pane: guestsPane, waiting: true}
	m.focuses[guestsPane].by.column = 3 // who asks for most CPU
	m.focuses[alarmsPane].by.column = 2 // the worst
	return m
}

// Init asks for the first status and starts the clock.
func (m Model) Init() tea.Cmd { return tea.Batch(m.fetch(), m.tick()) }

// The messages beside the library's own.
type (
	tickMsg   time.Time
	statusMsg struct {
		status status.Status
		err    error
		at     time.Time
	}
	// doneMsg says what became of an order.
	doneMsg struct {
		done string
		err  error
		at   time.Time
	}
)

// patience is how long the daemon has to answer.
const patience = 5 * time.Second

func (m Model) tick() tea.Cmd {
	return tea.Tick(m.interval, func(t time.Time) tea.Msg { return tickMsg(t) })
}

func (m Model) fetch() tea.Cmd {
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		s, err := m.daemon.Status(ctx)
		return statusMsg{s, err, time.Now()}
	}
}

func (m Model) order(q *question) tea.Cmd {
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
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

// chosen returns the row that the mark of a pane is on, and where that is.
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

// current returns the key of the marked row of the pane in focus.
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
