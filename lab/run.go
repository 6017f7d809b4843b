package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// ErrSilent means that the lab has locked up: seen now and then when QEMU
// emulates several busy CPUs on few real ones. Kill it and boot another.
var ErrSilent = errors.New("the lab gives no sign of life")

// silence is how long a living lab may be silent, on a machine with much else to do.
const silence = time.Minute

// alive reports whether the lab's heart has beaten lately.
func (h *Host) alive() error {
	beat, err := os.Stat(h.share("beat"))
	if err == nil && time.Since(beat.ModTime()) > silence {
		return fmt.Errorf("%w since %s; the end of its console: %s", ErrSilent, beat.ModTime().Format(time.TimeOnly), h.consoleTail())
	}
	return nil
}

// Run runs a command in the lab and returns its exit status. Output is passed
// on as it comes; several may run at a time. When ctx ends, the command and its children are ended too.
func (h *Host) Run(ctx context.Context, argv []string, stdout, stderr io.Writer) (int, error) {
	if len(argv) == 0 {
		return 0, errors.New("lab: no command given")
	}
	name := "run/" + strconv.FormatInt(h.next.Add(1), 10)
	script := "cd /root 2>/dev/null || cd /\nexec"
	for _, a := range argv {
		script += " " + quote(a)
	}
	if err := os.WriteFile(h.share(name+".new"), []byte(script+"\n"), 0o755); err != nil {
		return 0, err
	}
	if err := os.Rename(h.share(name+".new"), h.share(name+".run")); err != nil {
		return 0, err
	}
	out, errOut := tail{path: h.share(name + ".out")}, tail{path: h.share(name + ".err")}
	status, err := h.follow(ctx, name, func() error { return errors.Join(out.copyTo(stdout), errOut.copyTo(stderr)) })
	for _, end := range []string{".sh", ".out", ".err", ".rc", ".kill"} {
		os.Remove(h.share(name + end))
	}
	return status, err
}

// follow passes output on until the exit status is there.
func (h *Host) follow(ctx context.Context, name string, pass func() error) (int, error) {
	done := ctx.Done()
	for {
		data, statErr := os.ReadFile(h.share(name + ".rc"))
		if err := pass(); err != nil {
			return 0, err
		}
		if err := h.alive(); err != nil {
			return 0, err
		}
		if statErr == nil {
			status, err := strconv.Atoi(strings.TrimSpace(string(data)))
			return status, errors.Join(err, ctx.Err())
		}
		select {
		case <-done:
			done = nil // ask once, then give it a moment to end
			if err := os.WriteFile(h.share(name+".kill"), nil, 0o644); err != nil {
				return 0, errors.Join(ctx.Err(), err)
			}
			var cancel context.CancelFunc
			grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), powerOffTime)
			defer cancel()
			if err := h.await(grace, name+".rc", powerOffTime); err != nil {
				return 0, errors.Join(ctx.Err(), err)
			}
		case <-h.ended:
			return 0, fmt.Errorf("the lab ended while the command ran: %s", h.consoleTail())
		case <-time.After(poll):
		}
	}
}

// tail reads what a growing file has got since the last look.
type tail struct {
	path string
	read int64
}

func (t *tail) copyTo(w io.Writer) error {
	f, err := os.Open(t.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(t.read, io.SeekStart); err != nil {
		return err
	}
	n, err := io.Copy(w, f)
	t.read += n
	return err
}

// quote makes a word that a POSIX shell takes as it is.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
