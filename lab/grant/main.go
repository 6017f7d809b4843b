// Grant plays the host of one guest: it listens on a Unix socket for the agent, sends
// grants, and prints what the agent answers and what the kernel has seen. The tests
// run it in the lab, whose kernel stands for a guest's.
//
//	grant SOCKET DEMAND LIST...
//
// ends when the agent has also reported DEMAND, in thousandths of a vCPU, and stalls.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/numavisor/numavisor/internal/api/guest"
)

// Answer is what one grant led to.
type Answer struct {
	guest.Report
	UsedList string `json:"used_list"`
	// Millis is the time from the grant to its acknowledgement.
	Millis float64 `json:"ms"`
	// Ran is the greatest share of time in which a vCPU without a grant ran tasks after
	// the acknowledgement, from the kernel's /proc/schedstat: the least of a few
	// times, since other programs on the machine stretch what a timer takes.
	Ran float64 `json:"ran"`
	// Least is the least share of time in which a vCPU with a grant ran tasks, the most of a few times: the
	// kernel must give work to a vCPU that has come back.
	Least float64 `json:"least"`
}

const (
	// watched is how long vCPUs without a grant are watched, and watches the most times.
	watched = 500 * time.Millisecond
	watches = 10
	// quiet is the share of time of a vCPU without a grant that ends watching.
	quiet = 0.05
	// busy is the share of time that a vCPU with a grant runs in a VM with work for all.
	busy = 0.2
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "grant: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return errors.New("usage: grant SOCKET DEMAND LIST...")
	}
	demand, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	_ = os.Remove(args[0])
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", args[0])
	if err != nil {
		return err
	}
	conn, err := listener.Accept()
	if err != nil {
		return err
	}
	h := &host{conn: conn}
	if err := h.next(); err != nil {
		return err
	}
	for _, list := range args[2:] {
		vcpus, err := guest.ParseList(list)
		if err != nil {
			return err
		}
		answer, err := h.grant(vcpus)
		if err != nil {
			return err
		}
		line, err := json.Marshal(answer)
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
	for h.report.Running+h.report.Waiting < demand || demand > 0 && h.report.Stalled <= 0 {
		if err := h.next(); err != nil {
			return err
		}
	}
	return nil
}

// host is the connection to an agent.
type host struct {
	conn   net.Conn
	lines  guest.Lines
	report guest.Report
}

// next waits for a report.
func (h *host) next() error {
	var buffer [4096]byte
	for got := false; !got; {
		n, err := h.conn.Read(buffer[:])
		if err != nil {
			return fmt.Errorf("waiting for a report: %w", err)
		}
		h.lines.Add(buffer[:n], func(line []byte) {
			r, e := guest.DecodeReport(line)
			if err = e; e == nil {
				h.report, got = r, true
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// grant sends a grant and waits until the vCPUs without one are released.
func (h *host) grant(vcpus guest.VCPUs) (Answer, error) {
	g := guest.Grant{V: guest.Version, Epoch: h.report.Epoch + 1, VCPUs: vcpus}
	line, err := guest.Encode(&g)
	if err != nil {
		return Answer{}, err
	}
	start := time.Now()
	if _, err := h.conn.Write(line); err != nil {
		return Answer{}, err
	}
	for h.report.Epoch != g.Epoch || h.report.Used.Without(vcpus) != (guest.VCPUs{}) {
		if err := h.next(); err != nil {
			return Answer{}, err
		}
		if h.report.Means == guest.None {
			break
		}
	}
	a := Answer{Report: h.report, UsedList: h.report.Used.String(), Millis: time.Since(start).Seconds() * 1000}
	for i := range watches {
		most, least := ran(vcpus)
		a.Least = max(a.Least, least)
		if i == 0 || most < a.Ran {
			a.Ran = most
		}
		if a.Ran < quiet && a.Least > busy {
			break
		}
	}
	return a, nil
}

// ran returns the greatest share of time in which a vCPU without a grant ran tasks, and the least of one with
// a grant.
func ran(granted guest.VCPUs) (most, least float64) {
	least = 1
	before, start := runTimes(), time.Now()
	time.Sleep(watched)
	for name, now := range runTimes() {
		id, err := strconv.Atoi(strings.TrimPrefix(name, "cpu"))
		share := float64(now-before[name]) / float64(time.Since(start))
		switch {
		case err != nil:
		case granted.Has(id):
			least = min(least, share)
		default:
			most = max(most, share)
		}
	}
	return most, least
}

// runTimes reads how long each vCPU has run tasks, in ns.
func runTimes() map[string]uint64 {
	text, err := os.ReadFile("/proc/schedstat")
	if err != nil {
		return nil
	}
	times := map[string]uint64{}
	for line := range strings.SplitSeq(string(text), "\n") {
		if f := strings.Fields(line); len(f) > 7 && strings.HasPrefix(f[0], "cpu") {
			times[f[0]], _ = strconv.ParseUint(f[7], 10, 64)
		}
	}
	return times
}
