package etcd

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mapping is where this process has a file mapped.
type mapping struct{ start, end uintptr }

// mappingOf finds the mapping of a file in the text of /proc/self/maps.
func mappingOf(maps, path string) (m mapping, found bool) {
	for line := range strings.Lines(maps) {
		fields := strings.SplitN(strings.TrimSpace(line), " ", 6) // address, permissions, offset, device, inode, path
		if len(fields) < 6 || strings.TrimSpace(fields[5]) != path {
			continue
		}
		first, last, _ := strings.Cut(fields[0], "-")
		start, errStart := strconv.ParseUint(first, 16, 64)
		end, errEnd := strconv.ParseUint(last, 16, 64)
		if errStart == nil && errEnd == nil {
			return mapping{uintptr(start), uintptr(end)}, true
		}
	}
	return m, false
}

// dropPages takes the pages of the database out of this process. Etcd maps its database, so each page that it has read
// once would count as this process's memory for ever: all of them, after a start. They stay in the kernel's cache as
// long as it has room, and come back when they are read. Only the server of a member that is alone does so: its
// database is replaced by nobody else.
func (s *server) dropPages() error {
	if !s.alone {
		return nil
	}
	path, err := filepath.Abs(s.Server.Cfg.BackendPath())
	if err != nil {
		return err
	}
	snapshot := s.Server.Backend().Snapshot() // while it is open, the database stays mapped where it is
	defer snapshot.Close()                    //nolint:errcheck // nothing is read of it
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	at, found := mappingOf(string(text), path)
	if !found {
		return nil // another folder by a symbolic link: the pages stay
	}
	if _, _, errno := unix.Syscall(unix.SYS_MADVISE, at.start, at.end-at.start, unix.MADV_DONTNEED); errno != 0 {
		return fmt.Errorf("drop the pages of %s: %w", path, errno)
	}
	return nil
}

// dropPages is that of the server in this process, if there is one.
func (s *Store) dropPages() {
	if s.server == nil {
		return
	}
	if err := s.server.dropPages(); err != nil {
		s.config.Log.Debug("pages of the database stay in memory", "error", err)
	}
}
