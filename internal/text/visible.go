// Package text writes values for people.
package text

import (
	"fmt"
	"strings"
	"unicode"
)

// Hidden reports whether a terminal does not simply show a rune: the rune moves
// the cursor, begins a command (C0, C1), reverses the order of writing, or has
// no width, so that two names look alike (Unicode's category Cf). Names of VMs
// are foreign input, and hypervisors allow such runes.
func Hidden(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029' ||
		r == unicode.ReplacementChar
}

// Visible writes hidden runes as escapes that a shell reads back between $' and
// ': \n, \t, \u009b, \U000e0041. A backslash next to them is doubled. A text without hidden
// runes stays as it is.
func Visible(s string) string {
	if !strings.ContainsFunc(s, Hidden) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\\':
			b.WriteString(`\\`)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case Hidden(r) && r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		case Hidden(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// VisibleLines is Visible for a text of several lines.
func VisibleLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = Visible(lines[i])
	}
	return strings.Join(lines, "\n")
}
