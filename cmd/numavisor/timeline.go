package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/journal"
)

// showTimeline prints what one move did second by second; id may be empty.
func showTimeline(c *cobra.Command, folder, id string) error {
	h, err := record.Journal{Folder: folder}.Read(record.Filter{})
	if err != nil {
		return err
	}
	line, ok := journal.TimelineOf(h.Entries, id)
	switch {
	case !ok && id == "":
		return fmt.Errorf("no move is recorded in %s", folder)
	case !ok:
		return fmt.Errorf("no move %q is recorded in %s; 'numavisor history' shows the IDs", id, folder)
	}
	return emit(c, line, func(w io.Writer) { printTimeline(w, &line) })
}

func printTimeline(w io.Writer, t *journal.Timeline) {
	fmt.Fprintf(w, "%s, decided %s: %s\n", t.ID, moment(t.Decided), t.What)
	if t.Why != "" {
		fmt.Fprintf(w, "because %s\n", t.Why)
	}
	rows := [][]string{{"SINCE", "COPIED", "WHAT", "WAITING"}}
	for i := range t.Seconds {
		s := &t.Seconds[i]
		var did []string
		for _, m := range s.Did {
			text := string(m.Step)
			if m.Guest != "" {
				text += " " + m.Guest
			}
			did = append(did, fmt.Sprintf("%s %.1f s", text, m.Took.Seconds()))
		}
		rows = append(rows, []string{fmt.Sprintf("%.0f s", s.Since.Seconds()), s.Copied().String(),
			strings.Join(did, ", "), strings.Join(s.Waiting, " ")})
	}
	fmt.Fprintln(w)
	columns(w, rows)
	fmt.Fprint(w, "\n", timelinePicture(t))
}

// marks are the characters of steps in the picture.
var marks = map[journal.TraceStep]byte{
	journal.TracePrepare: 'p', journal.TracePin: 'v', journal.TraceCopy: '#', journal.TracePull: '+',
	journal.TracePace: '.', journal.TraceRestrict: 'r',
}

const marksText = "p prepare   v move vCPUs   # copy   + the kernel brings memory   . wait for the allowed rate   " +
	"- wait for other VMs   r restrict to the nodes"

// timelineBar draws the line of one VM. A step that lasts longer than a character
// fills as many as it lasts.
func timelineBar(t *journal.Timeline, guest string, length time.Duration) string {
	var line []byte
	draw := func(from, to int, mark byte) {
		for len(line) <= to {
			line = append(line, ' ')
		}
		for at := from; at <= to; at++ {
			if line[at] == ' ' || line[at] == '-' || at == from {
				line[at] = mark
			}
		}
	}
	for i := range t.Seconds {
		s := &t.Seconds[i]
		at := int(max(0, s.Since) / length)
		step, took := s.Longest(guest)
		mark, ok := marks[step]
		switch {
		case ok:
			draw(at, at+int((took-1)/length), mark)
		case slices.Contains(s.Waiting, guest):
			_, busy := s.Longest("")
			for _, other := range t.Guests {
				_, took := s.Longest(other)
				busy = max(busy, took)
			}
			draw(at, at+int(max(0, busy-1)/length), '-')
		}
	}
	return strings.TrimRight(string(line), " ")
}

// timelinePicture draws a line for each VM, with a character for each second: the
// step that took most of it.
func timelinePicture(t *journal.Timeline) string {
	if len(t.Seconds) == 0 {
		return ""
	}
	length := max(t.Seconds[len(t.Seconds)-1].Length, time.Second)
	width := 0
	for _, guest := range t.Guests {
		width = max(width, len(guest))
	}
	var b strings.Builder
	for _, guest := range t.Guests {
		fmt.Fprintf(&b, "%-*s  %s\n", width, guest, timelineBar(t, guest, length))
	}
	fmt.Fprintf(&b, "one character: %v\n%s\n", length, marksText)
	return b.String()
}
