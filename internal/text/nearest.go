package text

import "strings"

// Nearest returns the candidate that a word was probably meant to be: one of
// the same letters, else the one with the fewest letters wrong, two at most and
// fewer than it has. "" means that none is near.
func Nearest(word string, candidates []string) string {
	best, nearest := 3, ""
	for _, c := range candidates {
		if SameLetters(word, c) {
			return c
		}
		if d := editDistance(letters(word), letters(c)); d < best && d < len(c) {
			best, nearest = d, c
		}
	}
	return nearest
}

// SameLetters reports whether words differ at most in case, "-", "_" and
// spaces: pageSize, page-size and page_size.
func SameLetters(a, b string) bool { return letters(a) == letters(b) }

func letters(s string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(s))
}

// editDistance is Levenshtein's, in bytes. It stops early for words that cannot
// be near: they come from foreign files and may be long.
func editDistance(a, b string) int {
	if d := max(len(a), len(b)) - min(len(a), len(b)); d > 3 {
		return d
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
