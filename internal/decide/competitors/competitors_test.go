package competitors_test

import (
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/decide/competitors"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func TestAnswers(t *testing.T) {
	ours := competitors.Guest{Name: "db", PID: 7, Mode: policy.ModeAuto}
	theirs := competitors.Guest{Name: "web", PID: 8, Mode: policy.ModeAdvise}
	drifted := func(g competitors.Guest, since, repaired time.Duration) competitors.Guest {
		g.Drift, g.Since = []string{"vCPU 0 may run on 4-5, intended 0-1"}, noon.Add(-since)
		if repaired > 0 {
			g.Repaired.At = noon.Add(-repaired)
		}
		return g
	}
	unrepaired := func(ago time.Duration) competitors.Guest {
		g := drifted(ours, time.Hour, ago)
		g.Repaired.Failed = "could not be bound again: away"
		return g
	}
	telling := func(ago time.Duration, failed string) competitors.Guest {
		g := ours
		g.Told = competitors.Tried{At: noon.Add(-ago), Failed: failed}
		return g
	}
	for _, c := range []struct {
		name       string
		kernel     inventory.Kernel
		movers     policy.Movers
		mode       policy.Mode
		guests     []competitors.Guest
		tried      map[plan.RemedyKind]competitors.Tried
		former     string
		competitor string // its name; empty: none
		answer     string // part of it
		do         []plan.Remedy
	}{
		{name: "nobody", kernel: inventory.Kernel{NUMABalancing: "2", KSMRun: "0", KSMAcrossNodes: "1"},
			guests: []competitors.Guest{ours}},
		{name: "kernel balancing is left on", kernel: inventory.Kernel{NUMABalancing: "1"},
			guests: []competitors.Guest{ours}, competitor: "kernel NUMA balancing", answer: "left on"},
		{name: "and switched off where wanted, tiering kept", kernel: inventory.Kernel{NUMABalancing: "3"},
			movers: policy.Movers{KernelBalancing: "off"}, guests: []competitors.Guest{ours},
			competitor: "kernel NUMA balancing", answer: "switched off", do: []plan.Remedy{{Kind: plan.WriteSetting,
				Path: plan.NUMABalancingPath, From: "3", Value: "2"}}},
		{name: "not for guests that are only advised", kernel: inventory.Kernel{NUMABalancing: "1"},
			movers: policy.Movers{KernelBalancing: "off"}, guests: []competitors.Guest{theirs}, competitor: "kernel " +
				"NUMA balancing", answer: "left on"},
		{name: "numad is told once", kernel: inventory.Kernel{NumadRunning: true}, guests: []competitors.Guest{ours,
			theirs}, competitor: "numad", answer: "being told to leave alone db", do: []plan.Remedy{{Kind: plan.ExcludeFromNumad, Guest: "db", PID: 7}}},
		{name: "and not again", kernel: inventory.Kernel{NumadRunning: true},
			guests: []competitors.Guest{telling(time.Hour, "")}, competitor: "numad", answer: "told to leave alone db"},
		{name: "numad that cannot be told is not said to be", kernel: inventory.Kernel{NumadRunning: true},
			guests: []competitors.Guest{telling(competitors.Again-time.Second,
				"no numad")}, competitor: "numad", answer: "could not be told to leave alone db (no numad); it is tried " +
				"again every 5m0s"},
		{name: "and is told later", kernel: inventory.Kernel{NumadRunning: true},
			guests: []competitors.Guest{telling(competitors.Again,
				"no numad")}, competitor: "numad", answer: "could not be told", do: []plan.Remedy{{Kind: plan.ExcludeFromNumad, Guest: "db", PID: 7}}},
		{name: "kernel balancing that was switched off, and not looked at " +
			"since", kernel: inventory.Kernel{NUMABalancing: "1"}, movers: policy.Movers{KernelBalancing: "off"},
			guests: []competitors.Guest{ours},
			tried:  map[plan.RemedyKind]competitors.Tried{plan.WriteSetting: {At: noon}}, competitor: "kernel NUMA " +
				"balancing", answer: "switched off while"},
		{name: "who switches it on again is not fought", kernel: inventory.Kernel{NUMABalancing: "1"},
			movers: policy.Movers{KernelBalancing: "off"}, guests: []competitors.Guest{ours},
			tried:      map[plan.RemedyKind]competitors.Tried{plan.WriteSetting: {At: noon.Add(-time.Minute)}},
			competitor: "kernel NUMA balancing", answer: "left on: it was switched off at 2026-11-21T11:59:00Z"},
		{name: "what could not be switched off is not said to be", kernel: inventory.Kernel{NUMABalancing: "1"},
			movers: policy.Movers{KernelBalancing: "off"}, guests: []competitors.Guest{ours},
			tried: map[plan.RemedyKind]competitors.Tried{plan.WriteSetting: {At: noon.Add(-time.Minute),
				Failed: "read-only"}}, competitor: "kernel NUMA balancing", answer: "left on: it could not be switched " +
				"off: read-only"},
		{name: "what could not even be begun waits", kernel: inventory.Kernel{NUMABalancing: "3"},
			movers: policy.Movers{KernelBalancing: "off"}, guests: []competitors.Guest{ours},
			tried: map[plan.RemedyKind]competitors.Tried{plan.WriteSetting: {At: noon.Add(time.Second - competitors.Again), Failed: "disk full", NotBegun: true}}, competitor: "kernel NUMA balancing", answer: "could not be switched off: disk full; it is tried again every 5m0s"},
		{name: "and is begun later", kernel: inventory.Kernel{NUMABalancing: "3"},
			movers: policy.Movers{KernelBalancing: "off"}, guests: []competitors.Guest{ours},
			tried: map[plan.RemedyKind]competitors.Tried{plan.WriteSetting: {At: noon.Add(-competitors.Again),
				Failed: "disk full", NotBegun: true}}, competitor: "kernel NUMA balancing", answer: "disk full", do: []plan.Remedy{{Kind: plan.WriteSetting, Path: plan.NUMABalancingPath, From: "3", Value: "2"}}},
		{name: "so is KSM", kernel: inventory.Kernel{KSMRun: "1", KSMAcrossNodes: "1"},
			movers: policy.Movers{KSM: "within"},
			tried: map[plan.RemedyKind]competitors.Tried{plan.KSMWithinNodes: {At: noon.Add(-competitors.Again),
				Failed: "disk full", NotBegun: true}}, competitor: "KSM across nodes", answer: "disk full; it is tried " +
				"again", do: []plan.Remedy{{Kind: plan.KSMWithinNodes}}},
		{name: "what was switched off stays so", movers: policy.Movers{KernelBalancing: "off"}, former: "3"},
		{name: "and is given back where the policy leaves it on", former: "3",
			do: []plan.Remedy{{Kind: plan.RestoreSetting, Path: plan.NUMABalancingPath, From: "2", Value: "3"}}},
		{name: "or has nothing done", movers: policy.Movers{KernelBalancing: "off"}, mode: policy.ModeOff, former: "3",
			do: []plan.Remedy{{Kind: plan.RestoreSetting, Path: plan.NUMABalancingPath, From: "2", Value: "3"}}},
		{name: "what could not be given back waits", former: "3",
			tried: map[plan.RemedyKind]competitors.Tried{plan.RestoreSetting: {At: noon.Add(-time.Minute),
				Failed: "read-only"}}},
		{name: "and is tried again", former: "3",
			tried: map[plan.RemedyKind]competitors.Tried{plan.RestoreSetting: {At: noon.Add(-competitors.Again),
				Failed: "read-only"}}, do: []plan.Remedy{{Kind: plan.RestoreSetting, Path: plan.NUMABalancingPath,
				From: "2", Value: "3"}}},
		{name: "KSM that could not be unmerged", kernel: inventory.Kernel{KSMRun: "1", KSMAcrossNodes: "1"},
			movers: policy.Movers{KSM: "within"},
			tried: map[plan.RemedyKind]competitors.Tried{plan.KSMWithinNodes: {At: noon.Add(-time.Minute),
				Failed: "no room"}}, competitor: "KSM across nodes", answer: "left so: it could not be unmerged, to " +
				"merge within nodes only: no room"},
		{name: "KSM that was set across nodes again", kernel: inventory.Kernel{KSMRun: "1", KSMAcrossNodes: "1"},
			movers:     policy.Movers{KSM: "within"},
			tried:      map[plan.RemedyKind]competitors.Tried{plan.KSMWithinNodes: {At: noon.Add(-time.Minute)}},
			competitor: "KSM across nodes", answer: "across them since"},
		{name: "nothing is done in mode advise", kernel: inventory.Kernel{NumadRunning: true}, mode: policy.ModeAdvise,
			guests: []competitors.Guest{theirs}, competitor: "numad", answer: "left to it"},
		{name: "KSM is left", kernel: inventory.Kernel{KSMRun: "1", KSMAcrossNodes: "1", KSMPagesShared: 9},
			competitor: "KSM across nodes", answer: "left so"},
		{name: "KSM within nodes", kernel: inventory.Kernel{KSMRun: "1", KSMAcrossNodes: "1"},
			movers: policy.Movers{KSM: "within"}, competitor: "KSM across nodes", answer: "within nodes",
			do: []plan.Remedy{{Kind: plan.KSMWithinNodes}}},
		{name: "a change is waited for", guests: []competitors.Guest{drifted(ours, 9*time.Second, 0)},
			competitor: "changes to guest db", answer: "bound again"},
		{name: "and repaired", guests: []competitors.Guest{drifted(ours, 10*time.Second, 0)},
			competitor: "changes to guest db", answer: "bound again", do: []plan.Remedy{{Kind: plan.BindGuest, Guest: "db",
				PID: 7}}},
		{name: "once", guests: []competitors.Guest{drifted(ours, time.Minute, 59*time.Minute)},
			competitor: "changes to guest db", answer: "changed again since"},
		{name: "and again after an hour", guests: []competitors.Guest{drifted(ours, time.Minute, time.Hour)},
			competitor: "changes to guest db", answer: "bound again", do: []plan.Remedy{{Kind: plan.BindGuest, Guest: "db",
				PID: 7}}},
		{name: "a repair that failed is no repair",
			guests: []competitors.Guest{unrepaired(competitors.Again - time.Second)}, competitor: "changes to guest db",
			answer: "left so for now: could not be bound again: away; it is tried again every 5m0s"},
		{name: "and is tried again", guests: []competitors.Guest{unrepaired(competitors.Again)},
			competitor: "changes to guest db", answer: "bound again", do: []plan.Remedy{{Kind: plan.BindGuest, Guest: "db",
				PID: 7}}},
		{name: "changes are left where wanted", movers: policy.Movers{Changes: "leave"},
			guests: []competitors.Guest{drifted(ours, time.Minute,
				0)}, competitor: "changes to guest db", answer: "left so"},
		{name: "and where the guest is only advised", guests: []competitors.Guest{drifted(theirs, time.Minute, 0)},
			competitor: "changes to guest web", answer: "mode is advise"},
	} {
		t.Run(c.name, func(t *testing.T) {
			mode := policy.ModeAuto
			if c.mode != "" {
				mode = c.mode
			}
			movers := policy.Policy{Movers: c.movers}.WithDefaults().Movers
			seen, do := competitors.Answer(
				competitors.Facts{
					Kernel: c.kernel,
					Seen:   noon.Add(-time.Second),
					Tried:  c.tried,
					Former: c.former,
					Guests: c.guests,
					Mode:   mode,
					Movers: movers,
					Now:    noon,
				},
			)
			if c.competitor == "" && len(seen) > 0 {
				t.Errorf("seen %+v", seen)
			}
			if c.competitor != "" &&
				(len(seen) != 1 || seen[0].Name != c.competitor || !strings.Contains(seen[0].Answer, c.answer) ||
					seen[0].What == "") {
				t.Errorf("seen %+v", seen)
			}
			if expected := c.kernel.NUMABalancing != "" && c.answer == "left on"; len(seen) == 1 &&
				seen[0].Expected != expected {
				t.Errorf("expected %v, want %v: %+v", seen[0].Expected, expected, seen)
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
	seen, _ := competitors.Answer(
		competitors.Facts{
			Kernel: inventory.Kernel{NUMABalancing: "1"},
			Moves:  inventory.KernelMoves{Balancing: 10 * topology.MiB},
			Window: 2 * time.Second,
		},
	)
	if len(seen) != 1 || !strings.Contains(seen[0].What, "5 MiB a second") {
		t.Errorf("%+v", seen)
	}
}
