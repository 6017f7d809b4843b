package pools_test

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/decide/pools"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

var cpus = topology.MustParseSet[topology.CPUID]

func whole() plan.CPUPools {
	return plan.CPUPools{Pools: []plan.CPUPool{{Name: "Pool-0", Scheduler: "credit2", CPUs: cpus("0-7")}},
		Guests: map[string]string{"a": "Pool-0", "b": "Pool-0"}}
}

func host(t testing.TB) *topology.Topology {
	t.Helper()
	topo, err := topology.Synthetic("nodes:4 cores:2 memory:4G")
	if err != nil {
		t.Fatal(err)
	}
	return &topo
}

func TestSplit(t *testing.T) {
	from := whole()
	to, err := pools.Split(from, host(t))
	if err != nil {
		t.Fatal(err)
	}
	steps, err := pools.Steps(from, to)
	want := `[rename pool "Pool-0" to "Pool-node0" take CPUs 2-7 from pool "Pool-node0"` +
		` create pool "Pool-node1" with CPUs 2-3 and scheduler credit2 create pool "Pool-node2" with CPUs 4-5 and` +
		` scheduler credit2 create pool "Pool-node3" with CPUs 6-7 and scheduler credit2]`
	if err != nil || fmt.Sprint(steps) != want {
		t.Errorf("steps are %v, error %v; want %s", steps, err, want)
	}
	if _, err := pools.Split(to, host(t)); !errors.Is(err, pools.ErrRefused) {
		t.Errorf("splitting again: error %v, want ErrRefused", err)
	}
}

func TestRefused(t *testing.T) {
	split := whole()
	split.Pools[0].CPUs = cpus("0-3")
	split.Pools = append(split.Pools, plan.CPUPool{Name: "db", Scheduler: "null", CPUs: cpus("4-7")})
	split.Guests["b"] = "db"
	change := func(to plan.CPUPools, err error) error {
		if err != nil {
			return err
		}
		if err := errors.Join(pools.Check(&to, host(t)), pools.CheckNames(&split, &to)); err != nil {
			return err
		}
		_, err = pools.Steps(split, to)
		return err
	}
	other := split.Clone()
	other.Pools[1].Scheduler = "credit"
	swapped := split.Clone()
	swapped.Pools[0].CPUs, swapped.Pools[1].CPUs = split.Pools[1].CPUs, split.Pools[0].CPUs
	for name, err := range map[string]error{
		"a pool that exists":      change(pools.Create(split, "db", "", cpus("0"))),
		"no CPUs":                 change(pools.Create(split, "new", "", cpus(""))),
		"all CPUs of a pool":      change(pools.Create(split, "new", "", cpus("4-7"))),
		"CPUs that are not there": change(pools.Create(split, "new", "", cpus("8"))),
		"unknown scheduler":       change(pools.Create(split, "new", "fair", cpus("0"))),
		"a name of digits":        change(pools.Create(split, "3", "", cpus("0"))),
		"a name with a quote":     change(pools.Create(split, `x" cpus="0`, "", cpus("0"))),
		"the first pool":          change(pools.Delete(split, "Pool-0")),
		"a pool with VMs":         change(pools.Delete(split, "db")),
		"no such pool":            change(pools.Assign(split, "web", cpus("0"))),
		"no such VM":              change(pools.Move(split, "c", "db")),
		"no such pool for a VM":   change(pools.Move(split, "a", "web")),
		"another scheduler":       change(other, nil),
		"all CPUs exchanged":      change(swapped, nil),
	} {
		if !errors.Is(err, pools.ErrRefused) {
			t.Errorf("%s: error is %v, want ErrRefused", name, err)
		}
	}
	for name, err := range map[string]error{
		"create": change(pools.Create(split, "new", "rtds", cpus("3-4"))),
		"assign": change(pools.Assign(split, "db", cpus("1-3"))),
		"move":   change(pools.Move(split, "a", "db")),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// xen obeys the rules of Xen step by step.
func xen(t *rapid.T, l plan.CPUPools, steps []plan.PoolStep) plan.CPUPools {
	free := topology.CPUSet{}
	l = l.Clone()
	must := func(ok bool, s plan.PoolStep) {
		if !ok {
			t.Fatalf("Xen refuses %q in %v of %v", s, steps, l)
		}
	}
	for _, s := range steps {
		i := l.Find(s.Pool)
		must((i >= 0) == (s.Kind != plan.CreatePool), s)
		switch s.Kind {
		case plan.RenamePool:
			l.Pools[i].Name = s.To
			for g, p := range l.Guests {
				if p == s.Pool {
					l.Guests[g] = s.To
				}
			}
		case plan.MoveToPool:
			l.Guests[s.Guest] = s.Pool
		case plan.DeletePool:
			for _, p := range l.Guests {
				must(p != s.Pool, s)
			}
			must(i > 0, s)
			free = free.Union(l.Pools[i].CPUs)
			l.Pools = append(l.Pools[:i], l.Pools[i+1:]...)
		case plan.FreeCPUs:
			must(s.CPUs.SubsetOf(l.Pools[i].CPUs), s)
			l.Pools[i].CPUs = l.Pools[i].CPUs.Minus(s.CPUs)
			must(!l.Pools[i].CPUs.IsEmpty(), s)
			free = free.Union(s.CPUs)
		case plan.CreatePool:
			must(s.CPUs.SubsetOf(free), s)
			free = free.Minus(s.CPUs)
			l.Pools = append(l.Pools, plan.CPUPool{Name: s.Pool, Scheduler: s.Scheduler, CPUs: s.CPUs})
		case plan.AddCPUs:
			must(s.CPUs.SubsetOf(free), s)
			free = free.Minus(s.CPUs)
			l.Pools[i].CPUs = l.Pools[i].CPUs.Union(s.CPUs)
		}
	}
	return l
}

func drawLayout(t *rapid.T, label string) plan.CPUPools {
	l := plan.CPUPools{Guests: map[string]string{}}
	names := append([]string{"first"}, rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"p", "q", "r"}), 0, 3,
		rapid.ID).Draw(t, label+" pools")...)
	for _, n := range names {
		l.Pools = append(l.Pools, plan.CPUPool{Name: n, Scheduler: "credit"})
	}
	for cpu := range topology.CPUID(8) {
		i := int(cpu)
		if i >= len(names) {
			i = rapid.IntRange(0, len(names)-1).Draw(t, label+" pool")
		}
		l.Pools[i].CPUs = l.Pools[i].CPUs.With(cpu)
	}
	for _, g := range []string{"a", "b", "c"} {
		l.Guests[g] = rapid.SampledFrom(names).Draw(t, label+" pool of a VM")
	}
	return l
}

// The steps lead to the layout by ways that Xen accepts, or are refused; nothing to do has no steps.
func TestSteps_LeadToTheLayout(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, to := drawLayout(t, "from"), drawLayout(t, "to")
		steps, err := pools.Steps(from, to)
		if err != nil {
			if !errors.Is(err, pools.ErrRefused) {
				t.Fatal(err)
			}
			return
		}
		got := xen(t, from, steps)
		if !got.Equal(&to) || fmt.Sprint(got.Guests) != fmt.Sprint(to.Guests) {
			t.Fatalf("from %v by %v to %v, want %v", from, steps, got, to)
		}
		if again, err := pools.Steps(got, to); err != nil || len(again) > 0 {
			t.Fatalf("steps %v, error %v where nothing is to be done", again, err)
		}
	})
}

// What one user action did can be taken back.
func TestSteps_OfAnUndo(t *testing.T) {
	from := whole()
	split, err := pools.Split(from, host(t))
	if err != nil {
		t.Fatal(err)
	}
	created, err := pools.Create(from, "db", "null", cpus("6-7"))
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []plan.CPUPools{split, created} {
		if steps, err := pools.Steps(to, from); err != nil || len(steps) == 0 {
			t.Errorf("back from %v: steps %v, error %v", to, steps, err)
		}
	}
}
