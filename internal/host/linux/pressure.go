package linux

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// CPUStat is cpu.stat of a cgroup, since the group was made.
type CPUStat struct {
	Usage, User, System time.Duration
	Periods, Throttled  uint64        // of cpu.max, 0 where there is no limit
	ThrottledTime       time.Duration // waiting for the next period
}

// ParseCPUStat reads cpu.stat; it skips rows of other kernels that it does not
// know.
func ParseCPUStat(data []byte) (CPUStat, error) {
	var s CPUStat
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(value, 10, 63)
		if err != nil {
			return CPUStat{}, fmt.Errorf("cpu.stat: %q is not a name and a number", abbreviate(line))
		}
		micros := time.Duration(min(n, uint64(maxMicros))) * time.Microsecond
		switch name {
		case "usage_usec":
			s.Usage = micros
		case "user_usec":
			s.User = micros
		case "system_usec":
			s.System = micros
		case "nr_periods":
			s.Periods = n
		case "nr_throttled":
			s.Throttled = n
		case "throttled_usec":
			s.ThrottledTime = micros
		}
	}
	return s, nil
}

// maxMicros keeps a hostile figure from overflowing a Duration (292 years).
const maxMicros = int64(1<<63-1) / int64(time.Microsecond)

// CPUStat reads cpu.stat.
func (c Cgroup) CPUStat() (CPUStat, error) {
	data, err := c.read("cpu.stat")
	if err != nil {
		return CPUStat{}, err
	}
	return ParseCPUStat(data)
}

// Pressure is one line of a pressure file: the share of time, from 0 to 1, in
// which tasks waited, over the last 10, 60 and 300 seconds, and the total time
// since start.
type Pressure struct {
	Over10s, Over60s, Over300s float64
	Total                      time.Duration
}

// ParsePressure reads cpu.pressure: "some" if at least one task waited, "full" if all did.
func ParsePressure(data []byte) (some, full Pressure, err error) {
	for line := range bytes.Lines(data) {
		var p Pressure
		var kind string
		var total uint64
		if _, err := fmt.Sscanf(string(line), "%s avg10=%g avg60=%g avg300=%g total=%d", &kind, &p.Over10s, &p.Over60s,
			&p.Over300s, &total); err != nil {
			return some, full, fmt.Errorf("pressure: %q: %w", abbreviate(string(line)), err)
		}
		p.Over10s, p.Over60s, p.Over300s = p.Over10s/100, p.Over60s/100, p.Over300s/100
		p.Total = time.Duration(min(total, uint64(maxMicros))) * time.Microsecond
		switch kind {
		case "some":
			some = p
		case "full":
			full = p
		}
	}
	return some, full, nil
}

// CPUPressure reads cpu.pressure.
func (c Cgroup) CPUPressure() (some, full Pressure, err error) {
	data, err := c.read("cpu.pressure")
	if err != nil {
		return some, full, err
	}
	return ParsePressure(data)
}

// CPUStat returns the file with the CPU time of a guest as a whole
// (ParseCPUStat); ok is false for a process without a cgroup laid out by
// libvirt.
func (k *FileCache) CPUStat(pid int) (file *CachedFile, ok bool, err error) {
	top, ok, err := k.root.guestTopOf(pid)
	if err != nil || !ok {
		return nil, false, err
	}
	return k.at(top.file("cpu.stat")), true, nil
}
