// Package guest is the protocol between a host's daemon and the agent in a guest,
// numavisor-guest, over a serial port of the VM, or over its vsock.
//
// The host sends grants: the vCPUs that the guest may use. The agent sends
// reports: the vCPUs that it uses, and what it demands. Both are level-triggered:
// each message holds everything, and replaces the one before it. So a message
// that is lost, repeated or late does no harm, and either side may restart.
//
// A grant has an epoch. The agent carries out the greatest epoch that it has
// received, and its reports name the epoch that is in place. A report of epoch E
// that names fewer vCPUs than before is the acknowledgement of their release.
//
// A message is one line of JSON, of at most MaxMessage bytes with its end.
// The host does not trust what a guest sends: see Report.
package guest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

const (
	// Version is the version of the protocol. Another one has other messages.
	Version = 1
	// Port is the name of the virtio-serial port.
	Port = "org.numavisor.guest.0"
	// VSockPort is the vsock port on which the agent listens if the VM has no virtio-serial port of that name. Below
	// 1024, only a privileged program of the guest can listen on it (net/vmw_vsock/af_vsock.c).
	VSockPort uint32 = 868
	// MaxMessage is the greatest length of a message in bytes, with its newline.
	MaxMessage = 1024
	// MaxVCPUs is the greatest number of vCPUs of a guest.
	MaxVCPUs = 1024
	// MaxUse is the greatest number of vCPUs whose use fits into a report.
	MaxUse = 128
	// MaxEpoch is the last epoch: the greatest integer that JSON readers agree on
	// (RFC 8259, section 6).
	MaxEpoch = 1<<53 - 1
	// maxLoad bounds Running and Waiting, in thousandths of a CPU: Linux has at most
	// 4,194,304 threads (PID_MAX_LIMIT).
	maxLoad = 4194304 * 1000
	// bootSize is the length of Report.Boot.
	bootSize = 8
)

// Means is how an agent takes vCPUs out of the guest's scheduling.
type Means string

// Means, the fastest first.
const (
	// Partition makes a cpuset partition of the vCPU.
	Partition Means = "partition"
	// Flip removes and makes one partition of all vCPUs for each change: an agent of another version.
	Flip Means = "flip"
	// Offline takes the vCPU offline. RCU is expedited meanwhile.
	Offline Means = "offline"
	// None: the agent cannot take any vCPU away.
	None Means = "none"
)

// Grant is what the host sends.
type Grant struct {
	V int `json:"v"`
	// Epoch numbers the grants of this guest.
	Epoch uint64 `json:"epoch"`
	// VCPUs may be used by the guest, no others. vCPU 0 is always among them: the
	// kernel of an x86 guest cannot be without it.
	VCPUs VCPUs `json:"vcpus"`
}

// Report is what the agent sends. The host believes nothing of it that it cannot
// see: a vCPU counts as released when the host's kernel has seen it idle.
type Report struct {
	V int `json:"v"`
	// Seq numbers the reports of one start of the agent.
	Seq uint64 `json:"seq"`
	// Boot changes when the guest boots: the first 8 digits of its boot_id.
	Boot string `json:"boot"`
	// Epoch is that of the last grant that the agent has carried out as far as it can;
	// 0 since the guest's boot: none.
	Epoch uint64 `json:"epoch"`
	// Present are the vCPUs of the guest, used or not.
	Present VCPUs `json:"present"`
	// Used are the vCPUs that are in the guest's scheduling, or run although they are
	// not.
	Used  VCPUs `json:"used"`
	Means Means `json:"means"`
	// Running is the number of vCPUs that executed threads, in thousandths: the most of the
	// last moments, or their mean in a guest that does little.
	Running int64 `json:"running"`
	// Waiting is the number of runnable threads that waited for a vCPU, in
	// thousandths.
	Waiting int64 `json:"waiting"`
	// Brief is the part of Running and Waiting that is there for a small share of the time only, in thousandths: work
	// of the kernel, for the most part.
	Brief int64 `json:"brief,omitempty"`
	// Stalled is the share of time in which some thread waited for a vCPU, in
	// thousandths (PSI "some"); -1: the kernel has no PSI.
	Stalled int64 `json:"stalled"`
	// Use has a digit for each vCPU below MaxUse: 0 (idle) to 9 (busy). Empty: there
	// are more vCPUs.
	Use string `json:"use,omitempty"`
}

// ErrVersion is that of a message of another version of the protocol.
var ErrVersion = errors.New("another version of the protocol")

// Check returns what is wrong with a grant.
func (g *Grant) Check() error {
	switch {
	case g.V != Version:
		return fmt.Errorf("version %d of the protocol, not %d: %w", g.V, Version, ErrVersion)
	case g.Epoch == 0 || g.Epoch > MaxEpoch:
		return fmt.Errorf("epoch %d; allowed: 1 to %d", g.Epoch, uint64(MaxEpoch))
	case !g.VCPUs.Has(0):
		return errors.New("a grant without vCPU 0")
	}
	return nil
}

// Check returns what is wrong with a report.
func (r *Report) Check() error {
	switch {
	case r.V != Version:
		return fmt.Errorf("version %d of the protocol, not %d: %w", r.V, Version, ErrVersion)
	case r.Epoch > MaxEpoch || r.Seq > MaxEpoch:
		return fmt.Errorf("epoch %d, seq %d; allowed: at most %d", r.Epoch, r.Seq, uint64(MaxEpoch))
	case !isHex(r.Boot, bootSize):
		return fmt.Errorf("boot %.16q; allowed: %d hexadecimal digits", r.Boot, bootSize)
	case !r.Present.Has(0) || !r.Used.Has(0) || r.Used.Without(r.Present) != VCPUs{}:
		return fmt.Errorf("used vCPUs %v of %v; allowed: a subset, both with vCPU 0", r.Used, r.Present)
	case r.Running < 0 || r.Running > maxLoad || r.Waiting < 0 || r.Waiting > maxLoad:
		return fmt.Errorf("running %d and waiting %d; allowed: 0 to %d", r.Running, r.Waiting, int64(maxLoad))
	case r.Brief < 0 || r.Brief > r.Running+r.Waiting:
		return fmt.Errorf("brief %d; allowed: 0 to running and waiting, %d", r.Brief, r.Running+r.Waiting)
	case r.Stalled < -1 || r.Stalled > 1000:
		return fmt.Errorf("stalled %d; allowed: -1 to 1000", r.Stalled)
	case len(r.Use) > MaxUse || !isDecimal(r.Use):
		return fmt.Errorf("use %.16q; allowed: at most %d digits", r.Use, MaxUse)
	}
	switch r.Means {
	case Partition, Flip, Offline, None:
		return nil
	}
	return fmt.Errorf("means %.16q; allowed: partition, flip, offline, none", string(r.Means))
}

func isDecimal(s string) bool {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

func isHex(s string, size int) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(s) == size
}

// message is one of the two messages.
type message interface{ Check() error }

// Encode returns a message as it is sent, with its newline. The error is that of
// Check.
func Encode(m message) ([]byte, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	line, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(line) >= MaxMessage {
		return nil, fmt.Errorf("a message of %d bytes; allowed: less than %d", len(line), MaxMessage)
	}
	return append(line, '\n'), nil
}

// DecodeGrant reads a grant from a line without its newline. The error of a
// message of another version wraps ErrVersion.
func DecodeGrant(line []byte) (Grant, error) {
	var g Grant
	return g, decode(line, &g)
}

// DecodeReport reads a report from a line without its newline. The error of a
// message of another version wraps ErrVersion.
func DecodeReport(line []byte) (Report, error) {
	var r Report
	return r, decode(line, &r)
}

func decode(line []byte, m message) error {
	if len(line) >= MaxMessage {
		return fmt.Errorf("a message of %d bytes; allowed: less than %d", len(line), MaxMessage)
	}
	var version struct{ V int }
	if err := json.Unmarshal(line, &version); err != nil {
		return fmt.Errorf("a message that is not JSON: %w", err)
	}
	if version.V != Version {
		return fmt.Errorf("version %d of the protocol, not %d: %w", version.V, Version, ErrVersion)
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(m); err != nil {
		return fmt.Errorf("reading a message: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("reading a message: more follows it on the line")
	}
	return m.Check()
}

// Lines splits what arrives into lines, in bounded memory: what is longer than a
// message is dropped up to the next newline. So a reader that begins within a
// message, after a restart, finds the next one.
type Lines struct {
	line []byte
	long bool
}

// Add appends what has arrived, and calls each with each line that is complete,
// without its newline. The line is valid only during the call.
func (l *Lines) Add(data []byte, each func(line []byte)) {
	for len(data) > 0 {
		at := bytes.IndexByte(data, '\n')
		part := data
		if at >= 0 {
			part = data[:at]
		}
		if len(l.line)+len(part) >= MaxMessage {
			l.long = true
		}
		if l.long {
			l.line = l.line[:0]
		} else {
			l.line = append(l.line, part...)
		}
		if at < 0 {
			return
		}
		if !l.long && len(l.line) > 0 {
			each(l.line)
		}
		l.line, l.long = l.line[:0], false
		data = data[at+1:]
	}
}
