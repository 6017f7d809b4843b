package main

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// sink is standard output that remembers a failed write: code that prints need
// not check every line.
type sink struct {
	to  io.Writer
	err error // the first one; nothing is written after it
}

func (s *sink) Write(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.to.Write(p)
	s.err = err
	return n, err
}

// fileOf returns the file of a command's stream, if it has one; for a sink, it
// returns the file behind it.
func fileOf(stream any) (*os.File, bool) {
	if s, ok := stream.(*sink); ok {
		stream = s.to
	}
	f, ok := stream.(*os.File)
	return f, ok
}

// check adds to a command's error that some or all of its output was lost. The
// user then has no report, so the error is neither a usage error nor partial
// success.
func (s *sink) check(ended error) error {
	if s.err == nil {
		return ended
	}
	lost, other := s.err.Error(), "" // as text: the command's own error must not decide the status
	switch {
	case errors.Is(ended, s.err):
		lost = ended.Error()
	case ended != nil:
		other = "; the command also failed: " + ended.Error()
	}
	return fmt.Errorf(
		"the output is not complete: %s; write it elsewhere, and check what the command changed before you repeat it%s",
		lost, other)
}
