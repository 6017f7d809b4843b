package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// wakeTime is how long a CPU of the lab may take to wake a process that
	// sleeps for 10 ms, on a machine with much else to do.
	wakeTime = 45 * time.Second
	// stacksTime bounds the reading of the stacks of the lab's processes.
	stacksTime = 30 * time.Second
)

// CheckCPUs starts a process on each CPU of the lab that sleeps for 10 ms. The
// error wraps ErrSilent if processes on some CPUs never wake while those on
// others do: then the emulator has stopped these CPUs.
func (h *Host) CheckCPUs(ctx context.Context) error {
	if !h.running() {
		return h.endOfQEMU()
	}
	ctx, cancel := context.WithTimeout(ctx, wakeTime)
	defer cancel()
	ends := make([]error, h.commandCPUs())
	var running sync.WaitGroup
	for cpu := range ends {
		running.Go(func() {
			var out, errOut bytes.Buffer
			status, err := h.Run(ctx, []string{"taskset", "-c", strconv.Itoa(cpu), "sleep", "0.01"}, &out, &errOut)
			if err == nil && status != 0 {
				err = fmt.Errorf("status %d: %s", status, strings.TrimSpace(errOut.String()))
			}
			ends[cpu] = err
		})
	}
	running.Wait()
	return stoppedCPUs(ends)
}

// commandCPUs is the number of CPUs on which commands run: all of the lab, or the vCPUs of Xen's first domain.
func (h *Host) commandCPUs() int {
	if h.xen != nil {
		return min(dom0VCPUs, h.Shape.CPUs())
	}
	return h.Shape.CPUs()
}

// stoppedCPUs judges how the process on each CPU ended. If none ended in time,
// the lab may just be slow: that proves nothing of the emulator.
func stoppedCPUs(ends []error) error {
	var all, asleep []error
	for cpu, err := range ends {
		if err == nil {
			continue
		}
		err = fmt.Errorf("CPU %d: %w", cpu, err)
		all = append(all, err)
		if errors.Is(err, context.DeadlineExceeded) {
			asleep = append(asleep, err)
		}
	}
	if len(asleep) > 0 && len(asleep) < len(ends) {
		return fmt.Errorf("%w on %d of %d CPUs, where a process slept for %v instead of 10 ms: %w", ErrSilent,
			len(asleep), len(ends), wakeTime, errors.Join(all...))
	}
	return errors.Join(all...)
}

// listStacks prints for each thread of libvirt, QEMU and Numavisor in the lab
// its name, state and what it waits for in the kernel, the stacks of those that
// no signal ends, and the kernel's last messages. It starts few processes,
// because each takes long in the lab.
const listStacks = `for p in $(grep -lasE 'libvirt|qemu|numavisor' /proc/[0-9]*/cmdline); do
	cd ${p%/cmdline}/task 2>/dev/null || continue
	grep -s . */comm */wchan
	grep -sh . $(grep -ls '^State:.D' */status | sed 's/status$/stack/') </dev/null
done
dmesg | tail -n 20`

// Stacks lists what the threads of libvirt, QEMU and Numavisor in the lab wait
// for, as far as the lab still says.
func (h *Host) Stacks(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, stacksTime)
	defer cancel()
	var out bytes.Buffer
	if _, err := h.Run(ctx, []string{"sh", "-c", listStacks}, &out, &out); err != nil {
		fmt.Fprintf(&out, "reading stacks in the lab: %v\n", err)
	}
	return out.String()
}
