package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/strictyaml"
)

// readFile parses a file, or standard input where the path is "-". Reading ends
// with ctx, also from a terminal, a pipe or a FIFO: then the error is ctx's.
// parse bounds what it reads. What parse says of the content is wrong use, as a
// flag's wrong value is; a file that cannot be read is not.
func readFile[T any](ctx context.Context, path string, parse func(io.Reader) (T, error)) (v T, err error) {
	name, file := "standard input", os.Stdin
	if path != "-" {
		// Opening a FIFO would otherwise wait for its writer, whatever ctx does.
		file, err = os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return v, fmt.Errorf("%w; give a file that can be read, or '-' for standard input", err)
		}
		defer file.Close()
		name = path
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return v, fmt.Errorf("%s: %w", name, err)
	}
	r := pollReader{ctx: ctx}
	controlled := raw.Control(func(fd uintptr) {
		r.fd = int(fd)
		v, err = parse(&r)
	})
	switch {
	case controlled != nil || r.failed:
		return v, fmt.Errorf("%s: %w", name, errors.Join(controlled, err))
	case err != nil:
		return v, wrongFile(name, err)
	}
	return v, nil
}

// wrongFile is an error about the content of a file.
func wrongFile(name string, err error) error {
	var faults *strictyaml.Error
	if errors.As(err, &faults) {
		return usageError{inFile(name, err)}
	}
	return wrongUse("%s: %w", name, err)
}

// inFile gives the errors of a file that was decoded the file's name. Other
// errors stay as they are.
func inFile(name string, err error) error {
	var faults *strictyaml.Error
	if errors.As(err, &faults) {
		return faults.In(name)
	}
	return err
}

// pollReader reads from a descriptor until ctx ends. It changes no flags of the
// descriptor: those of standard input are the shell's, too.
type pollReader struct {
	ctx    context.Context
	fd     int
	failed bool // reading ended by an error
}

// pollMillis is the time after which a waiting reader looks at its context.
const pollMillis = 100

func (r *pollReader) Read(p []byte) (int, error) {
	n, err := r.read(p)
	r.failed = err != nil && !errors.Is(err, io.EOF)
	return n, err
}

func (r *pollReader) read(p []byte) (int, error) {
	for {
		if err := r.ctx.Err(); err != nil {
			return 0, fmt.Errorf("stopped before its end: %w", err)
		}
		// A FIFO whose writer has not come yet is not ready; one whose writers have gone is, and ends.
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}, pollMillis)
		if ready == 0 || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, os.NewSyscallError("poll", err)
		}
		n, err := unix.Read(r.fd, p)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// readXML reads a domain XML. Its parser takes 4 MiB.
func readXML(r io.Reader) ([]byte, error) {
	const most = 8 << 20
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && len(data) > most {
		err = errors.New("more than 8 MiB: not a domain XML; give what 'virsh dumpxml' prints")
	}
	return data, err
}
