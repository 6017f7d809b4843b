package competitors_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/numavisor/numavisor/internal/decide/competitors"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func TestAnswer(t *testing.T) {
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
	excluding := func(ago time.Duration, failed string) competitors.Guest {
		g := ours
		g.NumadExcluded = competitors.Attempt{At: noon.Add(-ago), Failed: failed}
		return g
	}
	for _, c := range []struct {
		name       string
		kernel     inventory.Kernel
		movers     policy.Movers
		mode       policy.Mode
		guests     []competitors.Guest
		tried      map[plan.RemedyKind]competitors.Attempt
		former     string
		competitor string // its name; empty: none
		answer     string // part of it
		do         []plan.Remedy
	}{
		{name: "no competitor", kernel: inventory.Kernel{NUMABalancing: "2", KSMRun: "0", KSMAcrossNodes: "1"},
			guests: []competitors.Guest{ours}},
		{name: "kernel balancing is left on", kernel: inventory.Kernel{NUMABalancing: "1"},
			guests: []competitors.Guest{ours}, competitor: "kernel NUMA balancing", answer: "left on"},
		{name: "the policy disables kernel balancing, not tiering", kernel: inventory.Kernel{NUMABalancing: "3"},
			movers: policy.Movers{KernelBalancing: "off"}, guests: []competitors.Guest{ours},
			competitor: "kernel NUMA balancing", answer: "being disabled", do: []plan.Remedy{{Kind: plan.WriteSetting,
				Path: plan.NUMABalancingPath, From: "3", Value: "2"}}},
		{name: "kernel balancing is left on for guests in mode advise", kernel: inventory.Kernel{NUMABalancing: "1"},
			movers: policy.Movers{KernelBalancing: "off"}, guests: []competitors.Guest{theirs}, competitor: "kernel " +
				"NUMA balancing", answer: "left on"},
		{name: "a guest is excluded from numad", kernel: inventory.Kernel{NumadRunning: true},
			guests: []competitors.Guest{ours,
				theirs}, competitor: "numad", answer: "being excluded from numad: db", do: []plan.Remedy{{Kind: plan.ExcludeFromNumad, Guest: "db", PID: 7}}},
		{name: "an excluded guest is not excluded again", kernel: inventory.Kernel{NumadRunning: true},
			guests: []competitors.Guest{excluding(time.Hour, "")}, competitor: "numad", answer: "excluded from " +
				"numad: db"},
		{name: "a failed exclusion is reported", kernel: inventory.Kernel{NumadRunning: true},
			guests: []competitors.Guest{excluding(competitors.RetryAfter-time.Second,
				"no numad")}, competitor: "numad", answer: "could not be excluded from numad: db (no numad); the " +
				"daemon retries every 5m0s"},
		{name: "a failed exclusion is retried", kernel: inventory.Kernel{NumadRunning: true},
			guests: []competitors.Guest{excluding(competitors.RetryAfter,
				"no numad")}, competitor: "numad", answer: "could not be excluded", do: []plan.Remedy{{Kind: plan.ExcludeFromNumad, Guest: "db", PID: 7}}},
		{name: "kernel balancing that was switched off, and not read " +
			"since", kernel: inventory.Kernel{NUMABalancing: "1"}, movers: policy.Movers{KernelBalancing: "off"},
			guests: []competitors.Guest{ours},
			tried:  map[plan.RemedyKind]competitors.Attempt{plan.WriteSetting: {At: noon}}, competitor: "kernel NUMA " +
				"balancing", answer: "disabled while"},
		{name: "balancing that was enabled again is left on", kernel: inventory.Kernel{NUMABalancing: "1"},
			movers: policy.Movers{KernelBalancing: "off"}, guests: []competitors.Guest{ours},
			tried:      map[plan.RemedyKind]competitors.Attempt{plan.WriteSetting: {At: noon.Add(-time.Minute)}},
			competitor: "kernel NUMA balancing", answer: "left on: the daemon disabled it at 2026-11-21T11:59:00Z"},
		{name: "a failed change is reported", kernel: inventory.Kernel{NUMABalancing: "1"},
			movers: policy.Movers{KernelBalancing: "off"}, guests: []competitors.Guest{ours},
			tried: map[plan.RemedyKind]competitors.Attempt{plan.WriteSetting: {At: noon.Add(-time.Minute),
				Failed: "read-only"}}, competitor: "kernel NUMA balancing", answer: "left on: disabling it failed: " +
				"read-only"},
		{name: "a change that could not begin waits", kernel: inventory.Kernel{NUMABalancing: "3"},
			movers: policy.Movers{KernelBalancing: "off"}, guests: []competitors.Guest{ours},
			tried: map[plan.RemedyKind]competitors.Attempt{plan.WriteSetting: {At: noon.Add(time.Second - competitors.RetryAfter), Failed: "disk full", NotBegun: true}}, competitor: "kernel NUMA balancing", answer: "disabling it failed: disk full; the daemon retries every 5m0s"},
		{name: "a change that could not begin is retried", kernel: inventory.Kernel{NUMABalancing: "3"},
			movers: policy.Movers{KernelBalancing: "off"}, guests: []competitors.Guest{ours},
			tried: map[plan.RemedyKind]competitors.Attempt{plan.WriteSetting: {At: noon.Add(-competitors.RetryAfter),
				Failed: "disk full", NotBegun: true}}, competitor: "kernel NUMA balancing", answer: "disk full", do: []plan.Remedy{{Kind: plan.WriteSetting, Path: plan.NUMABalancingPath, From: "3", Value: "2"}}},
		{name: "a change of KSM that could not begin is retried", kernel: inventory.Kernel{KSMRun: "1",
			KSMAcrossNodes: "1"},
			movers: policy.Movers{KSM: "within"},
			tried: map[plan.RemedyKind]competitors.Attempt{plan.KSMWithinNodes: {At: noon.Add(-competitors.RetryAfter),
				Failed: "disk full", NotBegun: true}}, competitor: "KSM across nodes", answer: "disk full; the " +
				"daemon " +
				"retries", do: []plan.Remedy{{Kind: plan.KSMWithinNodes}}},
		{name: "disabled balancing stays disabled", movers: policy.Movers{KernelBalancing: "off"}, former: "3"},
		{name: "balancing is restored if the policy leaves it on", former: "3",
			do: []plan.Remedy{{Kind: plan.RestoreSetting, Path: plan.NUMABalancingPath, From: "2", Value: "3"}}},
		{name: "balancing is restored in mode off", movers: policy.Movers{KernelBalancing: "off"}, mode: policy.ModeOff,
			former: "3",
			do:     []plan.Remedy{{Kind: plan.RestoreSetting, Path: plan.NUMABalancingPath, From: "2", Value: "3"}}},
		{name: "a failed restoration waits", former: "3",
			tried: map[plan.RemedyKind]competitors.Attempt{plan.RestoreSetting: {At: noon.Add(-time.Minute),
				Failed: "read-only"}}},
		{name: "a failed restoration is retried", former: "3",
			tried: map[plan.RemedyKind]competitors.Attempt{plan.RestoreSetting: {At: noon.Add(-competitors.RetryAfter),
				Failed: "read-only"}}, do: []plan.Remedy{{Kind: plan.RestoreSetting, Path: plan.NUMABalancingPath,
				From: "2", Value: "3"}}},
		{name: "KSM that could not be unmerged", kernel: inventory.Kernel{KSMRun: "1", KSMAcrossNodes: "1"},
			movers: policy.Movers{KSM: "within"},
			tried: map[plan.RemedyKind]competitors.Attempt{plan.KSMWithinNodes: {At: noon.Add(-time.Minute),
				Failed: "no room"}}, competitor: "KSM across nodes", answer: "left on: restricting it to merging " +
				"within nodes failed: no room"},
		{name: "KSM that was set across nodes again", kernel: inventory.Kernel{KSMRun: "1", KSMAcrossNodes: "1"},
			movers:     policy.Movers{KSM: "within"},
			tried:      map[plan.RemedyKind]competitors.Attempt{plan.KSMWithinNodes: {At: noon.Add(-time.Minute)}},
			competitor: "KSM across nodes", answer: "has been changed since"},
		{name: "nothing is done in mode advise", kernel: inventory.Kernel{NumadRunning: true}, mode: policy.ModeAdvise,
			guests: []competitors.Guest{theirs}, competitor: "numad", answer: "left running"},
		{name: "KSM is left on", kernel: inventory.Kernel{KSMRun: "1", KSMAcrossNodes: "1", KSMPagesShared: 9},
			competitor: "KSM across nodes", answer: "requires unmerging"},
		{name: "KSM within nodes", kernel: inventory.Kernel{KSMRun: "1", KSMAcrossNodes: "1"},
			movers: policy.Movers{KSM: "within"}, competitor: "KSM across nodes", answer: "within nodes",
			do: []plan.Remedy{{Kind: plan.KSMWithinNodes}}},
		{name: "a change is not repaired at once", guests: []competitors.Guest{drifted(ours, 9*time.Second, 0)},
			competitor: "changes to VM db", answer: "being repaired"},
		{name: "a change is repaired after 10 s", guests: []competitors.Guest{drifted(ours, 10*time.Second, 0)},
			competitor: "changes to VM db", answer: "being repaired",
			do: []plan.Remedy{{Kind: plan.BindGuest, Guest: "db",
				PID: 7}}},
		{name: "a repeated change is accepted", guests: []competitors.Guest{drifted(ours, time.Minute, 59*time.Minute)},
			competitor: "changes to VM db", answer: "has been changed since"},
		{name: "a change an hour later is repaired", guests: []competitors.Guest{drifted(ours, time.Minute, time.Hour)},
			competitor: "changes to VM db", answer: "being repaired",
			do: []plan.Remedy{{Kind: plan.BindGuest, Guest: "db",
				PID: 7}}},
		{name: "a failed repair is reported",
			guests:     []competitors.Guest{unrepaired(competitors.RetryAfter - time.Second)},
			competitor: "changes to VM db",
			answer:     "not repaired: could not be bound again: away; the daemon retries every 5m0s"},
		{name: "a failed repair is retried", guests: []competitors.Guest{unrepaired(competitors.RetryAfter)},
			competitor: "changes to VM db", answer: "being repaired",
			do: []plan.Remedy{{Kind: plan.BindGuest, Guest: "db",
				PID: 7}}},
		{name: "changes are left by policy", movers: policy.Movers{Changes: "leave"},
			guests: []competitors.Guest{drifted(ours, time.Minute,
				0)}, competitor: "changes to VM db", answer: "not repaired"},
		{name: "changes are left in mode advise", guests: []competitors.Guest{drifted(theirs, time.Minute, 0)},
			competitor: "changes to VM web", answer: "mode is advise"},
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
			for i := range do {
				if do[i].Why == "" {
					t.Errorf("%s has no reason", do[i].Kind)
				}
				do[i].Why = ""
			}
			if diff := cmp.Diff(c.do, do, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("remedies (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnswer_ReportsRateOfKernelBalancing(t *testing.T) {
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
