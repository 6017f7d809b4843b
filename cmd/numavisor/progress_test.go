package main

import (
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// A log gets a line every 5 s, and none of a copy that takes less.
func TestProgress_PrintsALineEvery5SecondsOffATerminal(t *testing.T) {
	var out strings.Builder
	p := progressOn(&out)
	clock := time.Unix(0, 0)
	p.now = func() time.Time { return clock }
	bound := p.binding()
	for second := range 13 {
		clock = time.Unix(int64(second), 0)
		bound(plan.Step{}, topology.Bytes(second)*topology.MiB, 12*topology.MiB)
	}
	if want := "moving memory: 5 MiB of 12 MiB\nmoving memory: 10 MiB of 12 MiB\n"; out.String() != want {
		t.Errorf("bind printed %q, want %q", out.String(), want)
	}
	out.Reset()
	m := status.Moving{Move: plan.Move{Guests: []plan.GuestMove{{Guest: "web\n1"}}}, Step: "copying",
		Total: 8 * topology.MiB, BytesPerSecond: topology.MiB}
	moved := p.moving()
	for second := range 9 {
		clock = time.Unix(int64(100+second), 0)
		m.Done = topology.Bytes(second) * topology.MiB
		moved(m)
	}
	if want := "web\\n1: copying: 5 MiB of 8 MiB, 1 MiB/s\n"; out.String() != want {
		t.Errorf("apply printed %q, want %q", out.String(), want)
	}
}
