package server

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/server/store"
)

// All that the state derives from records agrees with the records after any changes, whether an event comes once or
// twice.
func TestState_DerivesWhatItsRecordsSay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		st := newState()
		hosts, vms := []string{"", "a", "b"}, []string{"v1", "v2", "v3", "v4"}
		pick := func(from []string) string { return rapid.SampledFrom(from).Draw(t, "name") }
		for revision := int64(1); revision < 40; revision++ {
			e := store.Event{Record: store.Record{Revision: revision}, Deleted: rapid.Bool().Draw(t, "deleted")}
			name, host := pick(vms), pick(hosts[1:])
			var value any
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				vm := fleet.VM{Name: name, Host: pick(hosts), Delete: rapid.Bool().Draw(t, "delete")}
				if rapid.Bool().Draw(t, "migrates") && vm.Host != "" {
					vm.Migration = &fleet.Migration{To: pick(hosts[1:])}
				}
				e.Key, value = store.VMs+name, vm
			case 1:
				e.Key, value = statusKey(name, host), fleet.VMStatus{Name: name, Host: host, Generation: revision}
			default:
				e.Key, value = store.Hosts+host, fleet.Host{Name: host, Draining: rapid.Bool().Draw(t, "draining")}
			}
			e.Value, _ = json.Marshal(value)
			if rapid.Bool().Draw(t, "read") {
				st.sorted(store.VMs)
			}
			for range rapid.IntRange(1, 2).Draw(t, "times") {
				c := newChange(revision)
				if err := st.apply(&e, &c); err != nil {
					t.Fatal(err)
				}
			}
			checkState(t, st)
			if at := st.revisionOf(e.Key); e.Deleted && at != 0 || !e.Deleted && at != revision {
				t.Fatalf("%s has revision %d after %d, deleted %v", e.Key, at, revision, e.Deleted)
			}
		}
	})
}

// A server learns of its own changes twice: from the answer of the store, and from the watch. Whichever comes first,
// and however late the other one is, the state is that of the latest event of each key.
func TestCache_TakesOwnChangesInAnyOrderWithTheWatch(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const most = 12
		keys := []string{store.VMs + "v1", store.VMs + "v2", statusKey("v1", "a"), remainsKey("b", "v2"),
			store.Hosts + "a", store.Claims + "a"}
		transactions := make([][]store.Event, most+1) // by revision
		own := make([][]int64, most+1)                // by what was watched before: revisions of answers that come then
		for revision := int64(1); revision <= most; revision++ {
			for _, key := range rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 1, 3, rapid.ID).Draw(t, "keys") {
				transactions[revision] = append(transactions[revision], store.Event{Deleted: rapid.Bool().Draw(t, "deleted"),
					Record: store.Record{Key: key, Revision: revision, Value: []byte("{}")}})
			}
			if rapid.Bool().Draw(t, "own") {
				after := rapid.IntRange(0, most).Draw(t, "answered after")
				own[after] = append(own[after], revision)
			}
		}
		c, known := newCache(slog.New(slog.DiscardHandler)), map[int64]bool{}
		take := func(revision int64, watched bool) {
			c.take(revision, transactions[revision], watched)
			known[revision] = true
			for _, key := range keys {
				if want, at := latest(transactions, known, key), c.state.revisionOf(key); at != want {
					t.Fatalf("%s has revision %d after %d (watched: %v), want %d", key, at, revision, watched, want)
				}
			}
		}
		for watched := range own {
			if watched > 0 {
				take(int64(watched), true)
			}
			for _, revision := range own[watched] {
				take(revision, false)
			}
		}
	})
}

// latest returns the revision of a key by the latest of the known transactions; 0: it does not exist.
func latest(transactions [][]store.Event, known map[int64]bool, key string) (revision int64) {
	for at := range transactions {
		for _, e := range transactions[at] {
			switch {
			case e.Key != key || !known[int64(at)]:
			case e.Deleted:
				revision = 0
			default:
				revision = e.Revision
			}
		}
	}
	return revision
}

// The watch brings the changes that this server has made again: only streams of hosts need to know, since hosts compare
// revisions.
func TestState_IgnoresTheEchoOfItsChanges(t *testing.T) {
	t.Parallel()
	st := newState()
	values := map[string]any{store.VMs + "v": fleet.VM{Name: "v", Host: "a", Migration: &fleet.Migration{To: "b"}},
		statusKey("v", "a"): fleet.VMStatus{}, store.Hosts + "a": fleet.Host{}, store.Reports + "a": fleet.Report{},
		store.Users + "u": user{}, store.Alive + "a": struct{}{}, remainsKey("c", "v"): fleet.VM{}}
	for _, again := range []bool{false, true} {
		c := newChange(5)
		for key, value := range values {
			text, _ := json.Marshal(value)
			if err := st.apply(&store.Event{Record: store.Record{Key: key, Value: text, Revision: 5}}, &c); err != nil {
				t.Fatal(err)
			}
		}
		if want := map[string]bool{"a": true, "b": true, "c": true}; !maps.Equal(c.desired, want) {
			t.Errorf("again %v: desired %v", again, c.desired)
		}
		if (len(c.vms) == 0) != again || (len(c.hosts) == 0) != again || c.tokens == again {
			t.Errorf("again %v: VMs %v, hosts %v, tokens %v", again, c.vms, c.hosts, c.tokens)
		}
	}
}

// checkState compares what the state derives with its records.
func checkState(t *rapid.T, st *state) {
	pending, migrating, draining := map[string]bool{}, map[string]bool{}, map[string]bool{}
	on := map[string]map[string]bool{"a": {}, "b": {}}
	for name, at := range st.vms {
		v := at.value()
		mark(pending, name, v.Host == "" && !v.Delete)
		mark(migrating, name, v.Migration != nil)
		if v.Host != "" {
			on[v.Host][name] = true
		}
		if v.Migration != nil {
			on[v.Migration.To][name] = true
		}
	}
	for name, h := range st.hosts {
		mark(draining, name, h.value.Draining)
	}
	for what, pair := range map[string][2]map[string]bool{"pending": {pending, st.pending},
		"migrating": {migrating, st.migrating}, "draining": {draining, st.draining}, "on a": {on["a"], st.on["a"]},
		"on b": {on["b"], st.on["b"]}} {
		if !maps.Equal(pair[0], pair[1]) {
			t.Fatalf("%s: %v, want %v", what, pair[1], pair[0])
		}
	}
	if names := st.sorted(store.VMs); !slices.Equal(names, slices.Sorted(maps.Keys(st.vms))) {
		t.Fatalf("sorted VMs: %v", names)
	}
	for vm, all := range st.statuses {
		seen := map[string]bool{}
		for _, at := range all {
			if seen[at.host] || at.name != vm {
				t.Fatalf("statuses of %s: %+v", vm, all)
			}
			seen[at.host] = true
		}
		if len(all) == 0 {
			t.Fatalf("%s has an empty list of statuses", vm)
		}
	}
}

// A pass looks at what has changed, and at all if that is too much.
func TestTouched(t *testing.T) {
	t.Parallel()
	st := newState()
	st.hosts["dead"] = record[fleet.Host]{value: fleet.Host{Dead: &fleet.Declared{}}}
	st.on["dead"], st.on["alive"] = map[string]bool{"v1": true}, map[string]bool{"v2": true}
	var of touched
	of.noteChange(st, change{vms: map[string]bool{"v3": true}, hosts: map[string]bool{"dead": true, "alive": true}})
	of.note("v4")
	if vms, all := of.take(); all || !maps.Equal(vms, map[string]bool{"v1": true, "v3": true, "v4": true}) {
		t.Errorf("%v, %v", vms, all)
	}
	for i := range mostTouched + 1 {
		of.note(fmt.Sprint(i))
	}
	if vms, all := of.take(); !all || len(vms) > 0 {
		t.Errorf("%d VMs, %v", len(vms), all)
	}
	if vms, all := of.take(); all || len(vms) > 0 {
		t.Errorf("%d VMs, %v, after all were taken", len(vms), all)
	}
}
