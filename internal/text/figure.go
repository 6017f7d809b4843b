package text

import (
	"cmp"
	"fmt"
	"strings"
)

// Percent writes a share from 0 to 1: "12.5 %".
func Percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

// Count writes a number of things: "1 node", "8 nodes".
func Count(n int, one, many string) string { return fmt.Sprintf("%d %s", n, Plural(n, one, many)) }

// Plural returns the word for one thing or that for many.
func Plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// Set writes a set, "-" if it is empty.
func Set(s fmt.Stringer) string { return cmp.Or(s.String(), "-") }

// Shorten cuts a text of foreign origin to this number of characters, for messages.
func Shorten(s string, most int) string {
	if len(s) <= most { // it has at most as many characters as bytes
		return s
	}
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most]) + "..."
	}
	return s
}

// clauseColumns is the most that FirstClause returns, in characters.
const clauseColumns = 60

// FirstClause cuts a reason for one cell of a table: up to the first ";" or line
// break, and to 60 characters, the last of them an ellipsis if it cuts there.
func FirstClause(s string) string {
	if i := strings.IndexAny(s, ";\r\n"); i >= 0 {
		s = s[:i]
	}
	s = strings.TrimSpace(s)
	if runes := []rune(s); len(runes) > clauseColumns {
		return string(runes[:clauseColumns-1]) + "…"
	}
	return s
}
