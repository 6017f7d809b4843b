package local

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/fleet"
)

// ownerMark is the extended attribute of a file that was made for a VM: what it is, and for
// which VM. It is in the file itself, so that each host that reaches the file knows its owner.
const ownerMark = "user.numavisor.made-for"

// What files are made for VMs.
const (
	diskOf = "disk"
	seedOf = "seed"
)

// owner identifies a VM among all that the fleet ever has: names are used again.
func owner(what string, v *fleet.VM) string {
	return ownerName(what, v.Name) + v.Created.UTC().Format(time.RFC3339Nano)
}

func ownerName(what, name string) string { return what + " " + name + " " }

// makeFile makes a file for a VM by a function that writes it at another path of the folder. The
// file appears complete, with its owner, or not at all. If the VM has the file already, from an
// earlier start or from another host, it remains as it is, and made is false. For any other file at
// the path the error is fs.ErrExist.
func makeFile(path, what string, v *fleet.VM, write func(path string) error) (made bool, err error) {
	switch of, err := ownerOf(path); {
	case err == nil && of == owner(what, v):
		return false, nil
	case err == nil:
		return false, &fs.PathError{Op: "creating", Path: path, Err: fs.ErrExist}
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	folder, err := os.MkdirTemp(filepath.Dir(path), ".numavisor-") // of the same file system
	if err != nil {
		return false, err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	draft := filepath.Join(folder, filepath.Base(path))
	if err := write(draft); err != nil {
		return false, err
	}
	// A file system without such attributes (ENOTSUP) has files without an owner: they are not used again.
	if err := unix.Setxattr(draft, ownerMark, []byte(owner(what, v)), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
		return false, fmt.Errorf("marking %s as a file of VM %s: %w", path, v.Name, err)
	}
	err = os.Link(draft, path)                                               // never replaces a file, unlike os.Rename
	if errors.Is(err, unix.EPERM) || errors.Is(err, errors.ErrUnsupported) { // no hard links, as on CIFS
		err = unix.Renameat2(unix.AT_FDCWD, draft, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	}
	return err == nil, err
}

// ownerOf returns the owner of a file; empty: it has none. A symbolic link is not followed.
func ownerOf(path string) (string, error) {
	if _, err := os.Lstat(path); err != nil {
		return "", err
	}
	value := make([]byte, 512) // names of VMs have up to 255 bytes
	n, err := unix.Lgetxattr(path, ownerMark, value)
	switch {
	case err == nil:
		return string(value[:n]), nil
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.EPERM):
		return "", nil
	}
	return "", fmt.Errorf("reading the owner of %s: %w", path, err)
}

// removeFormer removes a file that was made for an earlier VM of this name.
func removeFormer(path, what string, v *fleet.VM) error {
	of, err := ownerOf(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if strings.HasPrefix(of, ownerName(what, v.Name)) && of != owner(what, v) {
		return os.Remove(path)
	}
	return nil
}

// identity returns the UUID and the MAC address of a VM. They are computed from what
// identifies it in the fleet, so that they are the same whenever and wherever it is defined again.
func identity(v *fleet.VM) (uuid, mac string) {
	h := sha256.Sum256([]byte(owner("vm", v)))
	id := h[:16]
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // version 8: by the rules of a vendor (RFC 9562)
	uuid = fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	return uuid, fmt.Sprintf("52:54:00:%02x:%02x:%02x", h[16], h[17], h[18]) // QEMU's prefix
}
