package linux

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// Area is one line of /proc/PID/maps.
type Area struct {
	Start, End uint64
	Writable   bool
	Private    bool   // private: a write copies the page first
	Offset     uint64 // of Start in the file, bytes
	Device     string // "00:01": device of the file's file system
	Inode      uint64 // 0 for anonymous memory
	Path       string // file or "[heap]" and the like
}

// ParseMaps reads /proc/PID/maps. Its form has not changed in decades, unlike
// that of numa_maps, so a line that does not fit is an error.
func ParseMaps(r io.Reader) ([]Area, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4<<10), longestLine)
	var areas []Area
	for number := 1; lines.Scan(); number++ {
		area, err := parseArea(lines.Text())
		if err != nil {
			return areas, fmt.Errorf("maps line %d: %w", number, err)
		}
		areas = append(areas, area)
	}
	if err := lines.Err(); err != nil {
		return areas, fmt.Errorf("reading maps: %w", err)
	}
	return areas, nil
}

func parseArea(line string) (a Area, err error) {
	fields := strings.SplitN(line, " ", 6)
	if len(fields) < 5 {
		return a, fmt.Errorf("%q has %d fields of at least 5", abbreviate(line), len(fields))
	}
	low, high, _ := strings.Cut(fields[0], "-")
	a.Start, err = strconv.ParseUint(low, 16, 64)
	if err == nil {
		a.End, err = strconv.ParseUint(high, 16, 64)
	}
	if err != nil || a.End < a.Start {
		return a, fmt.Errorf("%q is not a range of addresses", abbreviate(fields[0]))
	}
	a.Writable, a.Private = strings.Contains(fields[1], "w"), strings.HasSuffix(fields[1], "p")
	if a.Offset, err = strconv.ParseUint(fields[2], 16, 64); err != nil {
		return a, fmt.Errorf("%q is not an offset", abbreviate(fields[2]))
	}
	a.Device = fields[3]
	if a.Inode, err = strconv.ParseUint(fields[4], 10, 64); err != nil {
		return a, fmt.Errorf("%q is not an inode number", abbreviate(fields[4]))
	}
	if len(fields) == 6 {
		a.Path = strings.TrimLeft(fields[5], " ")
	}
	return a, nil
}

// Maps reads /proc/PID/maps: the extent of every mapping.
func (r Root) Maps(pid int) ([]Area, error) {
	file, err := os.Open(r.proc(pid, "maps"))
	if err != nil {
		return nil, fmt.Errorf("reading the mappings of process %d: %w", pid, err)
	}
	defer file.Close()
	areas, err := ParseMaps(file)
	if err != nil {
		err = fmt.Errorf("process %d: %w", pid, err)
	}
	return areas, err
}
