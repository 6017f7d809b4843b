package linux

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"golang.org/x/sys/unix"
)

// Keeper reads kernel files again and again at little cost: it keeps them
// open, reads each from its beginning into one buffer for all, and allocates
// nothing. For one goroutine at a time.
type Keeper struct {
	root   Root
	room   int // files that may still be kept open
	buffer []byte
}

// Keep returns a Keeper that keeps at most so many files open. Files beyond
// that are opened for each reading, which costs more and works alike.
func (r Root) Keep(most int) *Keeper {
	return &Keeper{root: r, room: most, buffer: make([]byte, 16<<10)}
}

// Kept is one file of a Keeper. It is opened by its first reading.
type Kept struct {
	keeper *Keeper
	path   string
	fd     int  // -1: not open
	pieces bool // the kernel hands it out in pieces
}

// File returns the file at a path below the root. The kernel writes nearly all
// of its files in one go: a reading that does not fill the buffer has it all.
func (k *Keeper) File(elements ...string) *Kept { return k.at(k.root.path(elements...)) }

// Table returns a file that the kernel writes record by record and hands out
// in pieces (/proc/schedstat, /proc/vmstat).
func (k *Keeper) Table(elements ...string) *Kept {
	f := k.File(elements...)
	f.pieces = true
	return f
}

func (k *Keeper) at(path string) *Kept { return &Kept{keeper: k, path: path, fd: -1} }

// Read returns the file's content as it is now. It is valid until the next
// reading by the same Keeper. After an error the file is opened anew.
func (f *Kept) Read() ([]byte, error) {
	fd := f.fd
	if fd < 0 {
		var err error
		if fd, err = open(f.path); err != nil {
			return nil, err
		}
		if f.keeper.room > 0 {
			f.keeper.room--
			f.fd = fd
		} else {
			defer closeRead(fd)
		}
	}
	data, err := f.keeper.readAll(fd, f.pieces)
	if err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "read", Path: f.path, Err: err}
	}
	return data, nil
}

// Close closes the file; reading it opens it again.
func (f *Kept) Close() {
	if f != nil && f.fd >= 0 {
		closeRead(f.fd)
		f.fd = -1
		f.keeper.room++
	}
}

// closeRead closes what was only read: nothing was written that could be lost.
func closeRead(fd int) { _ = unix.Close(fd) }

func open(path string) (fd int, err error) {
	for {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return -1, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// readAll reads a file from its beginning: until the kernel says that there is
// no more if it comes in pieces, else until a reading leaves room.
func (k *Keeper) readAll(fd int, pieces bool) ([]byte, error) {
	for at := 0; ; {
		if at == len(k.buffer) {
			k.buffer = append(k.buffer, make([]byte, len(k.buffer))...)
		}
		n, err := unix.Pread(fd, k.buffer[at:], int64(at))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		at += n
		if n == 0 || !pieces && at < len(k.buffer) {
			return k.buffer[:at], nil
		}
	}
}

// once are Keepers that keep nothing, for files that are read now and then.
var once = sync.Pool{New: func() any { return Live.Keep(0) }}

// readFile is os.ReadFile for kernel files, of which a look at the host reads
// thousands. It asks neither for a size, which they do not have, nor to be
// woken up, and takes four system calls instead of seven or eight.
func readFile(path string) ([]byte, error) {
	k := once.Get().(*Keeper)
	defer once.Put(k)
	f := k.at(path)
	f.pieces = true
	data, err := f.Read()
	return bytes.Clone(data), err
}

// OpenFiles returns how many files this process may have open. Go has raised
// the soft limit to the hard one by then, for this process and not for its children.
func OpenFiles() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("reading how many files may be open: %w", err)
	}
	return int(min(limit.Cur, 1<<30)), nil
}
