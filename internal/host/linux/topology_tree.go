package linux

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/numavisor/numavisor/internal/topology"
)

// Limits against hostile trees; the largest real file (meminfo, or the list of
// 8192 scattered CPUs) and the largest real folder (memory blocks next to a
// node's files) stay well below.
const (
	maxTopologyFile   = 256 << 10
	maxTopologyFolder = 1 << 18
	maxTopologyGaps   = 200
)

// tree reads a host's files below a folder and collects what could not be read.
// A missing file alone is no gap: kernels differ.
type tree struct {
	root *os.Root
	gaps []string

	folder string   // of the file that was read last
	within *os.Root // that folder; nil: it cannot be opened
}

// close closes what was opened, but for the root.
func (t *tree) close() {
	if t.within != nil {
		_ = t.within.Close() // nothing was written
	}
	t.folder, t.within = "", nil
}

// open opens a file for reading. os.Root opens each folder of a path, six for a file of a
// node's huge page pool, so the folder of the last file stays open for the next one.
func (t *tree) open(name string) (*os.File, error) {
	// Without O_NONBLOCK a named pipe in a hostile tree would hang us.
	const flags = os.O_RDONLY | syscall.O_NONBLOCK
	folder, file := path.Split(name)
	if folder == "" {
		return t.root.OpenFile(name, flags, 0)
	}
	if folder != t.folder {
		t.close()
		t.folder = folder
		if within, err := t.root.OpenRoot(path.Clean(folder)); err == nil {
			t.within = within
		}
	}
	if t.within != nil {
		f, err := t.within.OpenFile(file, flags, 0)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
	}
	return t.root.OpenFile(name, flags, 0) // a link may leave the folder
}

func (t *tree) gap(format string, args ...any) {
	switch len(t.gaps) {
	case maxTopologyGaps:
		t.gaps = append(t.gaps, "further gaps are omitted")
		fallthrough
	case maxTopologyGaps + 1:
		return
	}
	t.gaps = append(t.gaps, fmt.Sprintf(format, args...))
}

// err returns the gaps as an error, for a tree without any usable file.
func (t *tree) err() error {
	if len(t.gaps) == 0 {
		return nil
	}
	return errors.New(strings.Join(t.gaps, "; "))
}

// text reads a whole file and trims it; ok is false if the file is missing or,
// with a gap, unreadable.
func (t *tree) text(name string) (text string, ok bool) {
	data, err := t.read(name)
	if err != nil {
		if !missing(err) {
			t.gap("reading %s: %v", name, err)
		}
		return "", false
	}
	// Some kernels (5.15 to 6.0) end bitmap files with a NUL.
	return strings.Trim(string(data), " \t\r\n\x00"), true
}

func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

func (t *tree) read(name string) ([]byte, error) {
	file, err := t.open(name)
	if err != nil {
		return nil, reason(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, reason(err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("is %v, not a regular file", info.Mode().Type())
	}
	data, err := io.ReadAll(io.LimitReader(file, maxTopologyFile+1))
	if err == nil && len(data) > maxTopologyFile {
		err = fmt.Errorf("is larger than %d bytes", maxTopologyFile)
	}
	return data, reason(err)
}

// reason removes the path from an error whose message will name the path.
func reason(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// names lists a folder in ascending order; empty if it is missing.
func (t *tree) names(folder string) []string {
	dir, err := t.root.OpenFile(folder, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_DIRECTORY, 0)
	if err != nil {
		if !missing(err) {
			t.gap("listing %s: %v", folder, reason(err))
		}
		return nil
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxTopologyFolder)
	if err != nil && !errors.Is(err, io.EOF) {
		t.gap("listing %s: %v", folder, reason(err))
	}
	if len(names) == maxTopologyFolder {
		t.gap("listing %s: more than %d entries", folder, maxTopologyFolder)
	}
	slices.Sort(names)
	return names
}

// numbered returns the ids of a folder's entries named prefix and a number, ascending.
func (t *tree) numbered(folder, prefix string) []int {
	var ids []int
	for _, name := range t.names(folder) {
		digits, found := strings.CutPrefix(name, prefix)
		if !found || digits == "" || strings.Trim(digits, "0123456789") != "" {
			continue
		}
		id, err := strconv.ParseUint(digits, 10, 16)
		if err != nil || strconv.FormatUint(id, 10) != digits {
			t.gap("%s: not a number that the kernel writes; left out", path.Join(folder, name))
			continue
		}
		ids = append(ids, int(id))
	}
	slices.Sort(ids)
	return ids
}

// number reads a file of one number; missing and broken (with a gap) give ok false.
func (t *tree) number(name string) (value int, ok bool) {
	text, ok := t.text(name)
	if !ok {
		return 0, false
	}
	value, err := strconv.Atoi(text)
	if err != nil || value < -1 || value > 1<<31-1 {
		t.gap("%s: %q is not a number", name, abbreviate(text))
		return 0, false
	}
	return value, true
}

// cpuList reads CPUs from the first file that exists: a list ("0-3,8"), or a
// mask of old kernels, whose name does not end in "list".
func (t *tree) cpuList(names ...string) (set topology.CPUSet, ok bool) {
	for _, name := range names {
		text, found := t.text(name)
		if !found {
			continue
		}
		parse := topology.ParseSet[topology.CPUID]
		if strings.HasSuffix(name, "map") || strings.HasSuffix(name, "siblings") || strings.HasSuffix(name, "cpus") {
			parse = topology.ParseMask[topology.CPUID]
		}
		set, err := parse(text)
		if err != nil {
			t.gap("%s: %v", name, err)
			continue
		}
		return set, true
	}
	return topology.CPUSet{}, false
}
