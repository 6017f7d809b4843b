package linux

// Kernel files with figures are read again and again in a loop. These readers
// parse the file's bytes in place and allocate nothing.

// nextField returns the first field of a line and the rest; fields are
// separated by blanks. An empty field means that the line has no more fields.
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

// nextLine returns the first line without its end, and the rest.
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
