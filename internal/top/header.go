package top

import (
	"fmt"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/text"
)

// header shows the daemon, its mode and problems; then the figures; then, only
// if it applies, that the picture is old, and competitors.
func (m Model) header() []string {
	if m.status == nil {
		lines := []string{headStyle.Render("numavisor top") + "  " + "waiting for the daemon"}
		if m.lost != nil {
			lines[0] = headStyle.Render("numavisor top") + "  " + bad.render("the daemon does not answer; retrying")
			lines = append(lines, wrapped(m.lost.Error(), m.width, 2)...)
		}
		return lines
	}
	s := m.status
	lines := []string{
		m.firstLine(),
		edges(m.width, tally(s), selfText(s, m.seen)...),
	}
	if f := s.Fleet; f != nil {
		tone := plain
		if !f.Connected {
			tone = warn
		}
		lines = append(lines, tone.render(fit(fleetText(f, m.now), m.width)))
	}
	for _, w := range m.warnings() {
		lines = append(lines, fit(w, m.width))
		lines[len(lines)-1] = warn.render(lines[len(lines)-1])
	}
	return lines
}

// firstLine shows host, mode and alarms and, at the right, the age of the picture
// where that is above 5 s, and the time. What does not fit is left out in this
// order: the end of the reason of a pause, the time, the end of the rest.
func (m Model) firstLine() string {
	s := m.status
	parts := []string{headStyle.Render("numavisor " + oneLine(s.Host)), alarmsText(s), modeText(s)}
	reason := ""
	if s.Pause != nil {
		parts[1], parts[2] = parts[2]+", "+warn.render(pauseText(s.Pause, m.now)), parts[1]
		reason = pauseReason(s.Pause)
	}
	left := strings.Join(parts, "  ")
	clock := m.now.Format("15:04:05")
	if age := m.age(); age > 5*time.Second {
		old := warn.render(span(age) + " old")
		if both := old + "  " + clock; fits(m.width, left, both) {
			return pinned(m.width, left+reason, both)
		}
		return pinned(m.width, left+reason, old)
	}
	if fits(m.width, left, clock) {
		return pinned(m.width, left+reason, clock)
	}
	return left + reason
}

// age is how old the picture is: since the daemon's sample, or without one since its answer.
func (m Model) age() time.Duration {
	if taken := m.status.Sample.Taken; !taken.IsZero() {
		return m.now.Sub(taken)
	}
	return m.now.Sub(m.got)
}

func fits(width int, left, right string) bool {
	return width-lipgloss.Width(left)-lipgloss.Width(right) >= 2
}

// pinned puts a text at the right, and one at the left that is cut where both do not fit.
func pinned(width int, left, right string) string {
	const least = 20 // cells; a screen that leaves the left less than this has no place for the right
	space := width - lipgloss.Width(right) - 2
	if space < least {
		return left
	}
	left = ansi.Truncate(left, space, "…")
	return left + strings.Repeat(" ", width-lipgloss.Width(left)-lipgloss.Width(right)) + right
}

// edges puts one text at the left and, at the right, the first of the others
// that fits.
func edges(width int, left string, right ...string) string {
	for _, r := range right {
		if space := width - lipgloss.Width(left) - lipgloss.Width(r); space >= 2 {
			return left + strings.Repeat(" ", space) + r
		}
	}
	return left
}

func modeText(s *status.Status) string {
	mode := plain
	if s.Mode != policy.ModeAuto {
		mode = warn
	}
	if s.Pause != nil {
		return mode.render(string(s.Mode)) // the pause follows, and needs the room
	}
	text := mode.render("mode " + string(s.Mode))
	if s.Held != "" {
		text += ", " + warn.render("no moves: "+oneLine(s.Held))
	}
	return text
}

// pauseText says "PAUSED for 12m".
func pauseText(p *status.Pause, now time.Time) string {
	if p.Until.IsZero() {
		return "PAUSED until resumed"
	}
	return "PAUSED for " + remaining(p.Until.Sub(now))
}

// pauseReason is why moves are paused, in parentheses: " (kernel update)".
func pauseReason(p *status.Pause) string {
	if p.Why == "" {
		return ""
	}
	return " (" + oneLine(p.Why) + ")"
}

func alarmsText(s *status.Status) string {
	var critical, warning int
	for _, a := range s.Alarms {
		switch {
		case !a.Active():
		case a.Severity == alarm.Critical:
			critical++
		default:
			warning++
		}
	}
	var parts []string
	if critical > 0 {
		parts = append(parts, bad.render(fmt.Sprintf("%d critical", critical)))
	}
	if warning > 0 {
		parts = append(parts, warn.render(fmt.Sprintf("%d warning", warning)))
	}
	if len(parts) == 0 {
		return good.render("no alarms")
	}
	return "alarms " + strings.Join(parts, ", ")
}

// tally counts guests and moves.
func tally(s *status.Status) string {
	text := fmt.Sprintf("%s, %s, %d degraded; %s, %s", text.Count(len(s.Sample.Nodes), "node", "nodes"),
		text.Count(len(s.Guests), "VM", "VMs"), len(s.Degraded),
		text.Count(int(s.Totals.MovesDone+s.Totals.MovesPart), "move", "moves"), short(s.Totals.MovedBytes))
	if s.Totals.MovesFailed > 0 {
		text += ", " + warn.render(fmt.Sprintf("%d failed", s.Totals.MovesFailed))
	}
	return text
}

// selfText is the daemon's own cost, long and short.
func selfText(s *status.Status, seen []moment) []string {
	text := "daemon " + short(s.Self.Resident)
	if share, known := selfShare(s, seen); known {
		text = fmt.Sprintf("daemon %.1f%% CPU %s", 100*share, short(s.Self.Resident))
	}
	return []string{fmt.Sprintf("%s, sample %s, plan %s", text, fine(s.Self.Sample), fine(s.Self.Plan)), text}
}

// fleetText says of which fleet the host is a member, and whether the daemon reaches its server.
func fleetText(f *status.Fleet, now time.Time) string {
	out := fmt.Sprintf("host %s of the fleet of %s: ", oneLine(f.Host), oneLine(f.Server))
	if f.Connected {
		out += "connected"
	} else {
		out += "NOT CONNECTED"
	}
	if !f.Since.IsZero() {
		out += " for " + span(now.Sub(f.Since))
	}
	if !f.Connected && f.Why != "" {
		out += ": " + oneLine(f.Why)
	}
	return out
}

// stale reports whether the daemon takes no samples though it answers.
func (m Model) stale() bool {
	s := m.picture().Sample
	return !s.Taken.IsZero() && m.now.Sub(s.Taken) > max(2*status.LongestWait, 5*s.Window)
}

// warnings say that the picture is old, and list the competitors.
func (m Model) warnings() []string {
	var lines []string
	s := m.status
	age := m.age()
	switch {
	case m.lost != nil:
		text := fmt.Sprintf("DAEMON LOST for %s; the picture is %s old; retrying: %v", span(m.now.Sub(m.lostAt)),
			span(age), m.lost)
		lost := wrapped(text, m.width, 2)
		lines = append(lines, lost[:min(len(lost), 3)]...)
	case s.Sample.Taken.IsZero():
		lines = append(lines, "the daemon answers, but has not taken a sample yet")
	case m.stale():
		lines = append(lines, fmt.Sprintf("the daemon answers, but its last sample is %s old", span(age)))
	}
	for _, r := range s.Competitors[:min(2, len(s.Competitors))] {
		lines = append(lines, fmt.Sprintf("competitor %s: %s; %s", r.Name, r.What, r.Answer))
	}
	if more := len(s.Competitors) - 2; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more competitors", more))
	}
	return lines
}
