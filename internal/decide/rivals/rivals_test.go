package rivals_test

import (
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/decide/rivals"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func TestAnswers(t *testing.T) {
	ours := rivals.Guest{Name: "db", PID: 7, Mode: policy.ModeAuto}
	theirs := rivals.Guest{Name: "web", PID: 8, Mode: policy.ModeAdvise}
	drifted := func(g rivals.Guest, since, repaired time.Duration) rivals.Guest {
		g.Drift, g.Since = []string{"vCPU 0 may run on 4-5, intended 0-1"}, noon.Add(-since)
		if repaired > 0 {
			g.Repaired = noon.Add(-repaired)
		}
		return g
	}
	excluded := ours
	excluded.Excluded = true
	for _, c := range []struct {
		name   string
		kernel inventory.Kernel
		movers policy.Movers
		mode   policy.Mode
		guests []rivals.Guest
		rival  string // its name; empty: none
		answer string // part of it
		do     []rivals.Action
	}{
		{name: "nobody", kernel: inventory.Kernel{NUMABalancing: "2", KSMRun: "0", KSMAcrossNodes: "1"}, guests: []rivals.Guest{ours}},
		{name: "kernel balancing is left on", kernel: inventory.Kernel{NUMABalancing: "1"}, guests: []rivals.Guest{ours}, rival: "kernel NUMA balancing", answer: "left on"},
		{name: "and switched off where wanted, tiering kept", kernel: inventory.Kernel{NUMABalancing: "3"}, movers: policy.Movers{KernelBalancing: "off"}, guests: []rivals.Guest{ours},
			rival: "kernel NUMA balancing", answer: "switched off", do: []rivals.Action{{Kind: rivals.StopBalancing, Value: "2"}}},
		{name: "not for guests that are only advised", kernel: inventory.Kernel{NUMABalancing: "1"}, movers: policy.Movers{KernelBalancing: "off"}, guests: []rivals.Guest{theirs}, rival: "kernel NUMA balancing", answer: "left on"},
		{name: "numad is told once", kernel: inventory.Kernel{NumadRunning: true}, guests: []rivals.Guest{ours, theirs}, rival: "numad", answer: "leave alone db", do: []rivals.Action{{Kind: rivals.Exclude, Guest: "db", PID: 7}}},
		{name: "and not again", kernel: inventory.Kernel{NumadRunning: true}, guests: []rivals.Guest{excluded}, rival: "numad", answer: "leave alone db"},
		{name: "nothing is done in mode advise", kernel: inventory.Kernel{NumadRunning: true}, mode: policy.ModeAdvise, guests: []rivals.Guest{theirs}, rival: "numad", answer: "left to it"},
		{name: "KSM is left", kernel: inventory.Kernel{KSMRun: "1", KSMAcrossNodes: "1", KSMPagesShared: 9}, rival: "KSM across nodes", answer: "left so"},
		{name: "KSM within nodes", kernel: inventory.Kernel{KSMRun: "1", KSMAcrossNodes: "1"}, movers: policy.Movers{KSM: "within"}, rival: "KSM across nodes", answer: "within nodes", do: []rivals.Action{{Kind: rivals.KSMWithin}}},
		{name: "a change is waited for", guests: []rivals.Guest{drifted(ours, 9*time.Second, 0)}, rival: "changes to guest db", answer: "bound again"},
		{name: "and repaired", guests: []rivals.Guest{drifted(ours, 10*time.Second, 0)}, rival: "changes to guest db", answer: "bound again", do: []rivals.Action{{Kind: rivals.Repair, Guest: "db", PID: 7}}},
		{name: "once", guests: []rivals.Guest{drifted(ours, time.Minute, 59*time.Minute)}, rival: "changes to guest db", answer: "changed again since"},
		{name: "and again after an hour", guests: []rivals.Guest{drifted(ours, time.Minute, time.Hour)}, rival: "changes to guest db", answer: "bound again", do: []rivals.Action{{Kind: rivals.Repair, Guest: "db", PID: 7}}},
		{name: "changes are left where wanted", movers: policy.Movers{Changes: "leave"}, guests: []rivals.Guest{drifted(ours, time.Minute, 0)}, rival: "changes to guest db", answer: "left so"},
		{name: "and where the guest is only advised", guests: []rivals.Guest{drifted(theirs, time.Minute, 0)}, rival: "changes to guest web", answer: "mode is advise"},
	} {
		t.Run(c.name, func(t *testing.T) {
			mode := policy.ModeAuto
			if c.mode != "" {
				mode = c.mode
			}
			movers := policy.Policy{Movers: c.movers}.WithDefaults().Movers
			seen, do := rivals.Answer(rivals.Facts{Kernel: c.kernel, Guests: c.guests, Mode: mode, Movers: movers, Now: noon})
			if c.rival == "" {
				if len(seen) > 0 || len(do) > 0 {
					t.Fatalf("%+v %+v", seen, do)
				}
				return
			}
			if len(seen) != 1 || seen[0].Name != c.rival || !strings.Contains(seen[0].Answer, c.answer) || seen[0].What == "" {
				t.Errorf("seen %+v", seen)
			}
			if len(do) != len(c.do) {
				t.Fatalf("does %+v, want %+v", do, c.do)
			}
			for i, a := range do {
				if a.Why == "" {
					t.Errorf("%s has no reason", a.Kind)
				}
				if a.Why = ""; a != c.do[i] {
					t.Errorf("does %+v, want %+v", a, c.do[i])
				}
			}
		})
	}
}

func TestWhatTheKernelMovesIsTold(t *testing.T) {
	seen, _ := rivals.Answer(rivals.Facts{Kernel: inventory.Kernel{NUMABalancing: "1"}, Moves: inventory.KernelMoves{Balancing: 10 * topology.MiB}, Window: 2 * time.Second})
	if len(seen) != 1 || !strings.Contains(seen[0].What, "5 MiB a second") {
		t.Errorf("%+v", seen)
	}
}
