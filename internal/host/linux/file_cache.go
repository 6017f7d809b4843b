package linux

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"golang.org/x/sys/unix"
)

// FileCache reads kernel files again and again at little cost: it leaves them
// open, reads each from its beginning into one buffer for all, and allocates
// nothing. One goroutine at a time may use it.
type FileCache struct {
	root   Root
	room   int // how many more files may stay open
	buffer []byte
}

// NewFileCache returns a FileCache that leaves at most limit files open. It
// opens any further file for each reading, which costs more but gives the same
// result.
func (r Root) NewFileCache(limit int) *FileCache {
	return &FileCache{root: r, room: limit, buffer: make([]byte, 16<<10)}
}

// CachedFile is one file of a FileCache. Its first reading opens it.
type CachedFile struct {
	cache  *FileCache
	path   string
	fd     int  // -1: not open
	pieces bool // the kernel returns it in pieces
}

// File returns the file at a path below the root. The kernel writes nearly all
// of its files in one go: a reading that does not fill the buffer is complete.
func (k *FileCache) File(elements ...string) *CachedFile { return k.at(k.root.path(elements...)) }

// Table returns a file that the kernel writes record by record and returns in
// pieces (/proc/schedstat, /proc/vmstat).
func (k *FileCache) Table(elements ...string) *CachedFile {
	f := k.File(elements...)
	f.pieces = true
	return f
}

func (k *FileCache) at(path string) *CachedFile { return &CachedFile{cache: k, path: path, fd: -1} }

// Read returns the file's current content. It is valid until the next reading
// by the same FileCache. After an error the next reading opens the file again.
func (f *CachedFile) Read() ([]byte, error) {
	fd := f.fd
	if fd < 0 {
		var err error
		if fd, err = open(f.path); err != nil {
			return nil, err
		}
		if f.cache.room > 0 {
			f.cache.room--
			f.fd = fd
		} else {
			defer closeRead(fd)
		}
	}
	data, err := f.cache.readAll(fd, f.pieces)
	if err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "read", Path: f.path, Err: err}
	}
	return data, nil
}

// Close closes the file; the next reading opens it again.
func (f *CachedFile) Close() {
	if f != nil && f.fd >= 0 {
		closeRead(f.fd)
		f.fd = -1
		f.cache.room++
	}
}

// closeRead closes a file that was only read: no write can be lost.
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

// readAll reads a file from its beginning: a file in pieces until the kernel
// reports its end, any other until a reading leaves room in the buffer.
func (k *FileCache) readAll(fd int, pieces bool) ([]byte, error) {
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

// once holds FileCaches that leave no file open, for files that are read now
// and then.
var once = sync.Pool{New: func() any { return Live.NewFileCache(0) }}

// readFile is os.ReadFile for kernel files; one observation of the host reads
// thousands of them. It neither asks for a size, which they do not have, nor
// registers with the poller, and so takes four system calls instead of seven or
// eight.
func readFile(path string) ([]byte, error) {
	k := once.Get().(*FileCache)
	defer once.Put(k)
	f := k.at(path)
	f.pieces = true
	data, err := f.Read()
	return bytes.Clone(data), err
}

// OpenFiles returns how many files this process may have open. The Go runtime
// has already raised the soft limit to the hard limit, for this process and not
// for its children.
func OpenFiles() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("reading how many files may be open: %w", err)
	}
	return int(min(limit.Cur, 1<<30)), nil
}
