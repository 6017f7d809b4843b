package order

import (
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

func TestPull_Possible(t *testing.T) {
	well := Pull{Bytes: 100, Movable: 95, Free: 100, Targets: 1}
	for name, c := range map[string]struct {
		change func(*Pull)
		want   bool
	}{
		"the default policy":             {func(*Pull) {}, true},
		"nothing to copy":                {func(p *Pull) { p.Bytes, p.Movable = 0, 0 }, false},
		"a part is bound":                {func(p *Pull) { p.Movable = 89 }, false},
		"the target has too little room": {func(p *Pull) { p.Free = 99 }, false},
		"two targets":                    {func(p *Pull) { p.Targets = 2 }, false},
	} {
		p := well
		c.change(&p)
		if got := p.Possible(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// One VM that loses half of its time gets its memory faster from a thread that has
// a CPU of its own. Where that thread takes the CPU time of VMs, or many VMs wait
// for it, the kernel is better.
func TestPays(t *testing.T) {
	one := Pull{Bytes: 100, Loses: 0.5, VCPUs: 1}
	many := []Pull{one, one, one, one}
	for name, c := range map[string]struct {
		pulls []Pull
		spare float64
		want  bool
	}{
		"none":                   {nil, 0, false},
		"one, with a free CPU":   {[]Pull{one}, 1, false},
		"one, without":           {[]Pull{one}, 0, true},
		"four, with a free CPU":  {many, 1, false},
		"seven, with a free CPU": {append(many, one, one, one), 1, true},
	} {
		if got := Pays(c.pulls, c.spare); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestPulling_Continue(t *testing.T) {
	const all = 1000 * topology.MiB
	for name, c := range map[string]struct {
		rate func(s float64) topology.Bytes // MiB brought a second
		own  topology.Bytes
		want float64 // seconds until it ends
	}{
		"all is brought":        {func(float64) topology.Bytes { return 100 }, 0, 10},
		"no faults":             {func(float64) topology.Bytes { return 0 }, 0, 5},
		"it ebbs":               {func(s float64) topology.Bytes { return topology.Bytes(max(5, 100-20*s)) }, 0, 8},
		"slower than our copy":  {func(float64) topology.Bytes { return 20 }, 50 * topology.MiB, 5},
		"slow, but all we know": {func(float64) topology.Bytes { return 1 }, 0, 60},
	} {
		var p Pulling
		left, at := all, time.Duration(0)
		for goesOn := true; goesOn; {
			at += 500 * time.Millisecond
			left -= min(left, c.rate(at.Seconds())*topology.MiB/2)
			goesOn = p.Continue(at, left, all, c.own)
		}
		if got := at.Seconds(); got < c.want-0.5 || got > c.want+1 {
			t.Errorf("%s: ended after %v s, want %v", name, got, c.want)
		}
	}
}
