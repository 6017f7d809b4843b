package guestagent

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/api/guest"
)

// open opens the channel to the host, or leaves it closed.
func (l *loop) open(now time.Time) {
	l.opened = now
	path := l.options.Channel
	if device := deviceOf(l.agent.k, path); device != "" {
		path = device
	}
	fd, err := openChannel(path)
	if errors.Is(err, unix.ENOENT) && filepath.Dir(path) == portFolder {
		fd, err = l.vsock.accept()
	}
	if err != nil {
		if reason := err.Error(); reason != l.refused {
			l.refused = reason
			l.options.Log("opening the channel %s: %v; retrying every second", l.options.Channel, err)
		}
		return
	}
	l.channel, l.lines, l.refused, l.sent = fd, guest.Lines{}, "", time.Time{}
}

// close closes the channel, because of an error or because the host closed its side.
func (l *loop) close(err error) {
	_ = unix.Close(l.channel)
	l.channel = -1
	if reason := fmt.Sprint(err); reason != l.refused && err != nil {
		l.refused = reason
		l.options.Log("the channel: %v; opening it again", err)
	}
}

const (
	portFolder = "/dev/virtio-ports" // udev's links by name
	portClass  = "/sys/class/virtio-ports"
)

// deviceOf returns the device of a virtio-serial port, by the last part of the channel's
// path; empty: the channel is something else, or does not exist. In a guest without
// udev nothing makes links to the devices.
func deviceOf(k kernel, channel string) string {
	if filepath.Dir(channel) != portFolder {
		return ""
	}
	ports, err := k.list(portClass)
	if err != nil {
		return ""
	}
	for _, port := range ports {
		if name, err := k.read(filepath.Join(portClass, port, "name")); err == nil && name == filepath.Base(channel) {
			return "/dev/" + port
		}
	}
	return ""
}

// openChannel opens a device or connects to a Unix socket.
func openChannel(path string) (int, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return -1, err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// vsock is the socket on which the agent waits for the host if the VM has no virtio-serial port.
type vsock struct {
	socket  int
	listens bool
}

var errNoHost = fmt.Errorf("there is no such port; the agent waits for the host on port %d of the VM's vsock",
	guest.VSockPort)

// accept returns the connection of the host, which tries to connect each second; errNoHost: there is none yet.
func (v *vsock) accept() (int, error) {
	if !v.listens {
		socket, err := listenVSock(guest.VSockPort)
		if err != nil {
			return -1, fmt.Errorf("there is no such port; listening on port %d of the VM's vsock: %w",
				guest.VSockPort, err)
		}
		v.socket, v.listens = socket, true
	}
	for {
		fd, from, err := unix.Accept4(v.socket, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return -1, errNoHost
		case err != nil:
			return -1, fmt.Errorf("accepting the host's connection to port %d of the vsock: %w", guest.VSockPort, err)
		case isHost(from):
			return fd, nil
		}
		_ = unix.Close(fd)
	}
}

// isHost reports whether a connection is the host's, and not one of a program in this VM.
func isHost(from unix.Sockaddr) bool {
	vm, ok := from.(*unix.SockaddrVM)
	return ok && vm.CID == unix.VMADDR_CID_HOST
}

// listenVSock returns a socket that listens on a port of the VM's vsock.
func listenVSock(port uint32) (int, error) {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err = unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: port}); err == nil {
		err = unix.Listen(fd, 1)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
