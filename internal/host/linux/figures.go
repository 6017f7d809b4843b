package linux

// The figures of kernel files are read again and again in a loop: these
// readers take them from the bytes as they lie there and allocate nothing.

// nextField returns the first field of a line and what follows it; fields are
// separated by blanks. An empty field means that there is none.
func nextField(line []byte) (field, rest []byte) {
	start := 0
	for start < len(line) && blank(line[start]) {
		start++
	}
	end := start
	for end < len(line) && !blank(line[end]) {
		end++
	}
	return line[start:end], line[end:]
}

func blank(c byte) bool { return c == ' ' || c == '\t' || c == '\n' }

// nextLine returns the first line without its end, and what follows it.
func nextLine(text []byte) (line, rest []byte) {
	for i, c := range text {
		if c == '\n' {
			return text[:i], text[i+1:]
		}
	}
	return text, nil
}

// nextFigure reads the first field of a line as a number.
func nextFigure(line []byte) (n uint64, rest []byte, ok bool) {
	field, rest := nextField(line)
	n, ok = digits(field)
	return n, rest, ok
}
