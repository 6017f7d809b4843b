package libvirt

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// PID returns the process of a running QEMU guest. libvirt has no call for it;
// its QEMU driver writes RUNDIR/NAME.pid. The error is ErrNotRunning if the
// file's process is gone, or another process has its number now.
func (d *Driver) PID(name string) (int, error) {
	arguments := d.Arguments
	if arguments == nil {
		arguments = argumentsIn("/proc")
	}
	return pidOf(d.runDir, arguments, name)
}

// argumentsIn reads the arguments of processes below a folder.
func argumentsIn(proc string) func(pid int) ([]string, error) {
	return func(pid int) ([]string, error) {
		text, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "cmdline"))
		return strings.Split(string(text), "\x00"), err
	}
}

func pidOf(runDir string, arguments func(pid int) ([]string, error), name string) (int, error) {
	if name == "" || strings.ContainsAny(name, "/\x00") {
		return 0, &Error{Op: findingProcess, Guest: name, Err: fmt.Errorf("%q is not a valid name of a VM", name)}
	}
	pid, err := pidIn(filepath.Join(runDir, name+".pid"), arguments, name)
	if escaped := pathEscaper.Replace(name); err != nil && escaped != name {
		return pidIn(filepath.Join(runDir, escaped+".pid"), arguments, name)
	}
	return pid, err
}

const findingProcess = "finding its process"

// pathEscaper writes a name as libvirt does in the path of a pid file: with
// XML's escapes (virPidFileBuildPath).
var pathEscaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "'", "&apos;")

func pidIn(file string, arguments func(pid int) ([]string, error), name string) (int, error) {
	const op = findingProcess
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, &Error{Op: op, Guest: name, Kinds: []error{ErrNotRunning}, Err: err}
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid < 2 {
		return 0, &Error{Op: op, Guest: name,
			Err: fmt.Errorf("%s contains %.20q instead of a process number", file, text)}
	}
	args, err := arguments(pid)
	if err != nil {
		var kinds []error
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			kinds = []error{ErrNotRunning}
		}
		return 0, &Error{Op: op, Guest: name, Kinds: kinds, Err: err}
	}
	for _, arg := range args {
		if guestArgument(arg) == name {
			return pid, nil
		}
	}
	return 0, &Error{Op: op, Guest: name, Kinds: []error{ErrNotRunning},
		Err: fmt.Errorf("process %d, named by %s, is not QEMU with this VM", pid, file)}
}

// guestArgument extracts the name from QEMU's argument
// "guest=NAME,debug-threads=on"; a comma in a name is doubled.
func guestArgument(arg string) string {
	rest, ok := strings.CutPrefix(arg, "guest=")
	if !ok {
		return ""
	}
	rest = strings.ReplaceAll(rest, ",,", "\x00")
	rest, _, _ = strings.Cut(rest, ",")
	return strings.ReplaceAll(rest, "\x00", ",")
}
