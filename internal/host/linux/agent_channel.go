package linux

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// VMThreads is what the kernel does with the threads of VMs, and the channels to their agents.
type VMThreads struct {
	Root

	arguments *Arguments
}

// NewVMThreads returns the VMs' threads below a root.
func NewVMThreads(r Root) VMThreads { return VMThreads{r, NewArguments(r)} }

// ConnectAgent returns a socket that is connected to the agent in the VM of a QEMU process, in non-blocking mode: by
// the virtio-serial port of this name, or by this port of the VM's vsock if the VM has no such virtio-serial port.
func (v VMThreads) ConnectAgent(pid int, port string, vsock uint32) (*os.File, error) {
	path, err := v.SocketOf(pid, port)
	if err != nil {
		return nil, err
	}
	if path != "" {
		return ConnectUnix(path)
	}
	args, err := v.arguments.Of(pid)
	if err != nil {
		return nil, err
	}
	cid, ok := vsockCID(args)
	if !ok {
		return nil, fmt.Errorf("it has neither a port %s nor a vsock", port)
	}
	return connect(unix.AF_VSOCK, &unix.SockaddrVM{CID: cid, Port: vsock},
		fmt.Sprintf("port %d of vsock %d", vsock, cid))
}

// ConnectUnix returns a socket that is connected to the Unix socket of a path, in non-blocking mode.
func ConnectUnix(path string) (*os.File, error) {
	return connect(unix.AF_UNIX, &unix.SockaddrUnix{Name: path}, path)
}

// connectTime limits the wait for a guest's kernel: without a driver for its vsock it does not answer at all.
const connectTime = time.Second

func connect(family int, to unix.Sockaddr, name string) (*os.File, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("making a socket for %s: %w", name, err)
	}
	if err = unix.Connect(fd, to); errors.Is(err, unix.EINPROGRESS) {
		err = connected(fd)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("connecting to %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// connected waits until a connection is made or refused.
func connected(fd int) error {
	for end := time.Now().Add(connectTime); ; {
		left := time.Until(end)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(fds, int(left.Milliseconds())+1)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		case n > 0:
			failed, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			if err == nil && failed != 0 {
				err = unix.Errno(failed)
			}
			return err
		}
	}
}

// vsockCID returns the context id of a VM's vsock, by QEMU's arguments; ok is false if it has none. QEMU gets
// devices with properties, as JSON from libvirt.
func vsockCID(args []string) (cid uint32, ok bool) {
	for option, value := range options(args) {
		if option != "device" {
			continue
		}
		var d struct {
			Driver string
			CID    uint32 `json:"guest-cid"`
		}
		if strings.HasPrefix(value, "{") {
			if json.Unmarshal([]byte(value), &d) != nil {
				continue
			}
		} else {
			d.Driver = property(value, "driver", true)
			n, err := strconv.ParseUint(property(value, "guest-cid", false), 10, 32)
			if err != nil {
				continue
			}
			d.CID = uint32(n)
		}
		if strings.HasPrefix(d.Driver, "vhost-vsock") && d.CID > unix.VMADDR_CID_HOST {
			return d.CID, true
		}
	}
	return 0, false
}

// SocketOf returns the path of a Unix socket on which a process listens, by the
// last part of the path; empty: it listens on none. QEMU gets such sockets from
// libvirt, which makes their paths from the VM's number and a part of its name.
func (r Root) SocketOf(pid int, name string) (string, error) {
	table, err := os.ReadFile(r.path("proc", strconv.Itoa(pid), "net", "unix"))
	if err != nil {
		return "", err
	}
	paths := map[string]string{} // by inode
	for line := range strings.Lines(string(table)) {
		// Num RefCount Protocol Flags Type St Inode Path; flag 0x10000: it listens (SO_ACCEPTCON)
		f := strings.Fields(line)
		if len(f) == 8 && f[3] == "00010000" && filepath.Base(f[7]) == name {
			paths["socket:["+f[6]+"]"] = f[7]
		}
	}
	if len(paths) == 0 {
		return "", nil
	}
	folder := r.proc(pid, "fd")
	files, err := os.ReadDir(folder)
	if err != nil {
		return "", err
	}
	for _, file := range files {
		if target, err := os.Readlink(filepath.Join(folder, file.Name())); err == nil && paths[target] != "" {
			return paths[target], nil
		}
	}
	return "", nil
}
