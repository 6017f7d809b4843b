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
// parse limits how much it reads. An error of parse about the content is wrong
// use, like a wrong value of a flag; a file that cannot be read is a failure.
func readFile[T any](ctx context.Context, path string, parse func(io.Reader) (T, error)) (v T, err error) {
	name, file := "standard input", os.Stdin
	if path != "-" {
		// Without this flag, opening a FIFO waits for its writer and ignores ctx.
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

// inFile adds the file's name to decoding errors of that file. Other errors
// stay as they are.
func inFile(name string, err error) error {
	var faults *strictyaml.Error
	if errors.As(err, &faults) {
		return faults.In(name)
	}
	return err
}

// pollReader reads from a descriptor until ctx ends. It changes no flags of the
// descriptor: the shell shares those of standard input.
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
		// A FIFO is not ready before its first writer opens it; after its last writer
		// has closed it, it is ready and reports its end.
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
