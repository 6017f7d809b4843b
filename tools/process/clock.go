package process

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CanShift reports whether Shift has code for this machine.
const CanShift = runtime.GOARCH == "amd64"

// shifted replaces the start of clock_gettime in a process's vDSO: the system call, and for CLOCK_REALTIME an offset in
// seconds. The offset follows the code. No other clock changes, so that timers and time.Since go on as before, as they
// do when an operator or NTP sets a machine's clock.
var shifted = []byte{
	0xb8, 228, 0, 0, 0, // mov eax, 228 (clock_gettime)
	0x0f, 0x05, // syscall
	0x85, 0xff, // test edi, edi
	0x75, 0x0a, // jne to ret: another clock
	0x48, 0x8b, 0x0d, 0x06, 0, 0, 0, // mov rcx, [offset]
	0x48, 0x01, 0x0e, // add [rsi], rcx
	0xc3,       // ret
	0x90, 0x90, // so that the offset, which changes later, is aligned
}

// Shift makes the wall clock of the running process differ from the machine's by whole seconds. The process is any
// program that asks the vDSO for the time, as Go's do; it needs no support for this.
func (p *Program) Shift(by time.Duration) error {
	if !CanShift {
		return errors.New("shifting a clock: this tool has code for amd64 only")
	}
	if !p.Runs() {
		return nil // it has ended, and starts with the machine's clock
	}
	if err := shift(p.PID(), by); err != nil && p.Runs() {
		return fmt.Errorf("shifting the clock of %s: %w", p.Name, err)
	}
	return nil
}

func shift(pid int, by time.Duration) error {
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = memory.Close() }() // each write is checked
	from, to, err := vdso(pid)
	if err != nil {
		return err
	}
	image := make([]byte, to-from)
	if _, err := memory.ReadAt(image, from); err != nil {
		return fmt.Errorf("reading its vDSO: %w", err)
	}
	at, err := clockGettime(image)
	if err != nil {
		return err
	}
	offset := binary.LittleEndian.AppendUint64(nil, uint64(by/time.Second))
	if bytes.HasPrefix(image[at:], shifted) {
		_, err = memory.WriteAt(offset, from+int64(at+len(shifted)))
		return err
	}
	if err := halt(pid, from, to); err != nil {
		return err
	}
	_, err = memory.WriteAt(append(bytes.Clone(shifted), offset...), from+int64(at))
	return errors.Join(err, unix.Kill(pid, unix.SIGCONT))
}

// vdso returns where the vDSO of a process is.
func vdso(pid int) (from, to int64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(maps)) {
		if !strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			return 0, 0, fmt.Errorf("%q: %w", line, err)
		}
		return from, to, nil
	}
	return 0, 0, errors.New("it has no vDSO")
}

// clockGettime returns where the function begins in the image of a vDSO.
func clockGettime(image []byte) (int, error) {
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return 0, fmt.Errorf("its vDSO: %w", err)
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return 0, fmt.Errorf("its vDSO: %w", err)
	}
	for _, s := range symbols {
		if need := uint64(len(shifted) + 8); s.Name == "__vdso_clock_gettime" {
			if s.Size < need || s.Value+need > uint64(len(image)) {
				return 0, fmt.Errorf("clock_gettime of its vDSO has only %d bytes", s.Size)
			}
			return int(s.Value), nil
		}
	}
	return 0, errors.New("its vDSO has no clock_gettime")
}

// halt stops a process while none of its threads executes the vDSO.
func halt(pid int, from, to int64) error {
	for range 1000 {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			return err
		}
		switch state := threadsAt(pid, from, to); state {
		case outside:
			return nil
		case inside:
			if err := unix.Kill(pid, unix.SIGCONT); err != nil {
				return err
			}
		case running:
		}
		time.Sleep(time.Millisecond)
	}
	return errors.Join(errors.New("it does not stop outside of its vDSO"), unix.Kill(pid, unix.SIGCONT))
}

// whereabouts say whether all threads of a process have stopped, and where.
type whereabouts int

const (
	running whereabouts = iota // some have not stopped
	inside                     // of the range of addresses, at least one
	outside
)

func threadsAt(pid int, from, to int64) whereabouts {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(threads) == 0 {
		return running
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(filepath.Join(thread, "stat"))
		if i := bytes.LastIndexByte(stat, ')'); err != nil || i+2 >= len(stat) || stat[i+2] != 'T' {
			return running
		}
		text, err := os.ReadFile(filepath.Join(thread, "syscall")) // the last field is the instruction's address
		fields := strings.Fields(string(text))
		if err != nil || len(fields) < 2 {
			return running
		}
		at, err := strconv.ParseUint(strings.TrimPrefix(fields[len(fields)-1], "0x"), 16, 64)
		if err != nil {
			return running
		}
		if at >= uint64(from) && at < uint64(to) {
			return inside
		}
	}
	return outside
}
