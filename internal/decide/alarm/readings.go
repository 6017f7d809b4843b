package alarm

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/alarm"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// Input is the observed state of a host. The loads in its Sample may be means over
// some seconds: a burst then counts in proportion to its duration.
type Input struct {
	Sample inventory.Sample
	// Topology has the figures that samples lack: bandwidth, and reclaimable memory.
	Topology    *topology.Topology
	Guests      []Guest
	Competitors []status.Competitor // those that move pages now
	Gaps        []inventory.Gap
	// FailedMoves counts, by guest, the failed moves of the last hour.
	FailedMoves map[string]int
}

// Guest is what is known of a guest in addition to its sample.
type Guest struct {
	Name string
	// Nodes are its intended nodes; empty: it has none.
	Nodes topology.NodeSet
	// LocalShare is the part of its memory that is local to the vCPUs using it.
	// DriftShare is the part that is outside Nodes. nil: unknown.
	LocalShare, DriftShare *float64
	// PageSize is the size of its huge pages; 0: it uses none.
	PageSize topology.Bytes
}

// readings returns the readings of every present object. Those of unreadable
// sources come last.
func (j *judgement) readings() []reading {
	facts := make(map[string]Guest, len(j.in.Guests))
	for _, g := range j.in.Guests {
		facts[g.Name] = g
	}
	all := make([]reading, 0, 8*(1+len(j.in.Sample.Nodes)+len(j.in.Sample.Guests)))
	for i := range j.in.Sample.Nodes {
		n := &j.in.Sample.Nodes[i]
		j.there[inventory.NodeRef(n.Node)] = true
		all = append(all, j.node(n, facts)...)
	}
	for i := range j.in.Sample.Guests {
		g := &j.in.Sample.Guests[i]
		j.there[inventory.GuestRef(g.Name)] = true
		all = append(all, j.guest(g, facts[g.Name])...)
	}
	all = append(all, j.host()...)
	all = append(all, j.competitors()...)
	return append(all, j.unreadable(all)...)
}

// inWords returns the words for a reading. Few readings are ever shown, so they are formatted on demand.
func inWords(format string, args ...any) func() string {
	return func() string { return fmt.Sprintf(format, args...) }
}

// percent is a share, which is formatted on demand.
type percent float64

func (p percent) String() string { return text.Percent(float64(p)) }

// host returns the readings of the host as a whole.
func (j *judgement) host() []reading {
	s := &j.in.Sample
	pressure := reading{
		quantity: alarm.HostPressure,
		object:   inventory.HostRef(),
		unread:   s.Pressure.Memory == nil,
		source:   "/proc/pressure/memory",
	}
	if p := s.Pressure.Memory; p != nil {
		pressure.value = *p
		pressure.says = inWords("some task waited for memory in %s of the time", percent(*p))
	}
	moves := reading{
		quantity: alarm.KernelMoves,
		object:   inventory.HostRef(),
		unread:   s.Window <= 0,
		source:   "/proc/vmstat",
	}
	if s.Window > 0 {
		moves.value = float64(s.Moves.Balancing) / 1e6 / s.Window.Seconds()
		moves.says = inWords("the kernel's NUMA balancing moves %.1f MB/s between nodes", moves.value)
	}
	return []reading{pressure, moves}
}

// competitors returns a reading for each unexpected competitor that is present, or was.
func (j *judgement) competitors() []reading {
	var all []reading
	for _, r := range j.in.Competitors {
		if r.Expected {
			continue
		}
		says := r.What
		if r.Answer != "" {
			says += "; " + r.Answer
		}
		all = append(all,
			reading{quantity: alarm.CompetingMover, object: inventory.HostPartRef(r.Name), value: 1,
				says: inWords("%s", says)})
	}
	return append(all, j.ended(alarm.CompetingMover)...)
}

// ended returns readings of 0 for objects that may still have an alarm and are no
// longer named. If the object is still named, its earlier reading counts.
func (j *judgement) ended(q alarm.Quantity) []reading {
	var all []reading
	for k := range j.before {
		if k.quantity == q && !j.gone(k.object) {
			all = append(all, reading{quantity: q, object: k.object})
		}
	}
	return all
}

// unreadable returns a reading for each object with an unreadable source: an object
// with a gap, or with an alarm that has no reading.
func (j *judgement) unreadable(read []reading) []reading {
	lacks := map[inventory.Ref][]string{}
	for _, g := range j.gaps() {
		lacks[g.Object] = append(lacks[g.Object], fmt.Sprintf("%s: %s", g.What, g.Why))
	}
	readable := map[key]bool{}
	for i := range read {
		k := key{read[i].quantity, read[i].object}
		if t, known := j.before[k]; known {
			readable[k] = !read[i].unread && !estimateOnly(&t, &read[i])
		}
	}
	for k, t := range j.before {
		disabled := j.rules[k.quantity].Disabled
		if t.Alarm != nil && k.quantity != alarm.SourceUnreadable && !readable[k] && !disabled && !j.gone(k.object) {
			whole := k.object.Whole()
			lacks[whole] = append(lacks[whole],
				fmt.Sprintf("%s: its value cannot be read, so its alarm remains", k.quantity))
		}
	}
	var all []reading
	for object, what := range lacks {
		slices.Sort(what)
		all = append(
			all,
			reading{
				quantity: alarm.SourceUnreadable,
				object:   object,
				value:    1,
				says:     inWords("not seen: %s", strings.Join(slices.Compact(what), "; ")),
			},
		)
	}
	return append(all, j.ended(alarm.SourceUnreadable)...)
}

func (j *judgement) gaps() []inventory.Gap { return slices.Concat(j.in.Sample.Gaps, j.in.Gaps) }

// unseen reports whether an object without a sample may still exist, because a gap explains its absence.
func (j *judgement) unseen(object inventory.Ref) bool {
	_, isGuest := object.Guest()
	return slices.ContainsFunc(j.gaps(), func(g inventory.Gap) bool {
		return isGuest && g.HidesGuests() || g.Object == object || g.Object == object.Whole()
	})
}

// gone reports whether a node or guest has no sample any more and no gap explains that.
func (j *judgement) gone(object inventory.Ref) bool {
	whole := object.Whole()
	return !whole.IsHost() && !j.there[whole] && !j.unseen(object)
}

// cause is a guest and its contribution to a reading, with text.
type cause struct {
	guest  string
	amount float64
	says   string
}

// mostCauses bounds the guests that an alarm names.
const mostCauses = 5

// largest returns the greatest causes, each with the text that say returns.
func largest(of map[string]float64, say func(float64) string) []cause {
	var all []cause
	for name, amount := range of {
		if amount > 0 {
			all = append(all, cause{guest: name, amount: amount})
		}
	}
	slices.SortFunc(all, func(a, b cause) int {
		return cmp.Or(cmp.Compare(b.amount, a.amount), cmp.Compare(a.guest, b.guest))
	})
	all = all[:min(len(all), mostCauses)]
	for i := range all {
		all[i].says = say(all[i].amount)
	}
	return all
}

// facts are quantities of which the value says no more than the words.
var facts = []alarm.Quantity{alarm.CompetingMover, alarm.SourceUnreadable, alarm.GuestAgent, alarm.GuestMisbehaves}

// explain returns the guests that cause the reading, and the reason for the alarm.
func (r *reading) explain(threshold float64) (guests []string, why string) {
	if r.says != nil {
		why = r.says()
	}
	if !slices.Contains(facts, r.quantity) {
		why = fmt.Sprintf("%s; threshold %s", why, r.quantity.Amount(threshold))
	}
	if r.causes != nil {
		var most []string
		for _, c := range r.causes() {
			guests = append(guests, c.guest)
			if c.says != "" {
				most = append(most, c.guest+" "+c.says)
			}
		}
		if len(most) > 0 {
			why += "; most by " + strings.Join(most, ", ")
		}
	}
	if r.source != "" {
		why += "; from " + r.source
	}
	return guests, why
}
