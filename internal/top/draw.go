package top

import (
	"math"
	"strings"

	"charm.land/lipgloss/v2"
)

// tone is the meaning of a piece of text. Every tone but plain and good also
// appears in words or signs: the picture is complete without colour.
type tone int

const (
	plain tone = iota
	quiet
	good
	warn
	bad
	busy
)

// The sixteen basic colours follow the terminal's own theme, dark or light.
var tones = map[tone]lipgloss.Style{
	plain: lipgloss.NewStyle(),
	quiet: lipgloss.NewStyle().Faint(true),
	good:  lipgloss.NewStyle().Foreground(lipgloss.Green),
	warn:  lipgloss.NewStyle().Foreground(lipgloss.Yellow),
	bad:   lipgloss.NewStyle().Foreground(lipgloss.Red).Bold(true),
	busy:  lipgloss.NewStyle().Foreground(lipgloss.Cyan),
}

var (
	headStyle    = lipgloss.NewStyle().Bold(true)
	focusStyle   = lipgloss.NewStyle().Bold(true).Reverse(true)
	columnsStyle = lipgloss.NewStyle().Underline(true)
	chosenStyle  = lipgloss.NewStyle().Reverse(true)
	agedStyle    = lipgloss.NewStyle().Faint(true)
)

func (t tone) render(text string) string {
	if t == plain {
		return text
	}
	return tones[t].Render(text)
}

// toneOf returns the tone for the used share of a limited resource.
func toneOf(share, high, full float64) tone {
	switch {
	case share >= full:
		return bad
	case share >= high:
		return warn
	}
	return good
}

var eighths = []rune(" ▏▎▍▌▋▊▉█")

// bar draws a share from 0 to 1 over a number of cells. A share above 0 is
// always visible.
func bar(share float64, width int) string {
	if !(share > 0) {
		share = 0 // for NaN, too
	}
	share = min(1, share)
	parts := int(math.Round(share * float64(width*8)))
	if share > 0 && parts == 0 {
		parts = 1
	}
	var b strings.Builder
	for cell := range width {
		b.WriteRune(eighths[max(0, min(8, parts-8*cell))])
	}
	return b.String()
}

// meter draws a bar between marks, with its figures to the right: "▕███  ▏ 3.1/8".
func meter(share float64, figures string, width, figureWidth int) string {
	cells := width - figureWidth - 3
	if cells < 4 {
		return fitRight(figures, width)
	}
	return "▕" + bar(share, cells) + "▏" + " " + fitRight(figures, figureWidth)
}

var levels = []rune("▁▂▃▄▅▆▇█")

// sparkline draws values relative to their greatest, or to most if that is
// greater; NaN, a moment without a value, stays empty.
func sparkline(values []float64, most float64) string {
	for _, v := range values {
		if !math.IsNaN(v) {
			most = math.Max(most, v)
		}
	}
	var b strings.Builder
	for _, v := range values {
		switch {
		case math.IsNaN(v):
			b.WriteByte(' ')
		case most <= 0:
			b.WriteRune(levels[0])
		default:
			b.WriteRune(levels[max(0, min(7, int(v/most*8)))])
		}
	}
	return b.String()
}
