package schedule

import (
	"errors"

	"github.com/numavisor/numavisor/internal/topology"
)

// Outcome is the result of one request of a replay: a decision or a refusal.
type Outcome struct {
	VM       string       `json:"vm"`
	Decision *Decision    `json:"decision,omitempty"`
	Refused  *NoHostError `json:"refused,omitempty"`
	// Message is the refusal in one line.
	Message string `json:"message,omitempty"`
}

// Result is the end of a replay.
type Result struct {
	Outcomes []Outcome `json:"requests"`
	Summary  Summary   `json:"summary"`
}

// Summary counts VMs, and what is free when all requests are decided.
type Summary struct {
	Hosts   int `json:"hosts"`
	Placed  int `json:"placed"`
	Refused int `json:"refused"`
	// BeforeRefusal is the number of VMs that were placed before the first refusal.
	BeforeRefusal int `json:"placed_before_first_refusal"`
	Removed       int `json:"removed"`
	EmptyHosts    int `json:"empty_hosts"`
	// Free vCPUs and memory, and the part of them on nodes where none of the likely shapes
	// fits: the nodes have only the one or the other left.
	FreeVCPUs      float64        `json:"free_vcpus"`
	StrandedVCPUs  float64        `json:"stranded_vcpus"`
	FreeMemory     topology.Bytes `json:"free_memory_bytes"`
	StrandedMemory topology.Bytes `json:"stranded_memory_bytes"`
}

// Replay decides on requests one after the other, and adds each VM to its host. It ends at an
// error that is not a refusal.
func (f *Fleet) Replay(entries []RequestEntry) (Result, error) {
	out := Result{Outcomes: []Outcome{}}
	at := map[string]string{} // hosts by VM
	for i := range entries {
		if vm := entries[i].Remove; vm != "" {
			if on, placed := at[vm]; placed {
				if err := f.Remove(on, vm); err != nil {
					return out, err
				}
				out.Summary.Removed++
			}
			continue
		}
		for _, name := range copies(entries[i].Name, entries[i].Count) {
			spec := entries[i].Spec
			spec.Name = name
			o := Outcome{VM: name}
			d, err := f.Decide(Request{Spec: spec, Machine: entries[i].MachineType,
				Affinity: entries[i].Affinity})
			switch {
			case errors.As(err, &o.Refused):
				o.Message = err.Error()
				out.Summary.Refused++
			case err != nil:
				return out, err
			default:
				if err := f.Add(d); err != nil {
					return out, err
				}
				at[name], o.Decision = d.Host, d
				if out.Summary.Placed++; out.Summary.Refused == 0 {
					out.Summary.BeforeRefusal++
				}
			}
			out.Outcomes = append(out.Outcomes, o)
		}
	}
	f.summarize(&out.Summary)
	return out, nil
}

func (f *Fleet) summarize(s *Summary) {
	s.Hosts = len(f.byName)
	for _, h := range f.hosts {
		if h.known && len(h.Inventory.Guests) == 0 {
			s.EmptyHosts++
		}
		for i := range h.rooms {
			r := &h.rooms[i]
			s.FreeVCPUs += max(0, r.vcpus)
			s.FreeMemory += r.left
			useful := false
			for l := range f.likely {
				useful = useful || h.fits[l].cells > 0 && h.fits[l].on[i] > 0
			}
			if !useful {
				s.StrandedVCPUs += max(0, r.vcpus)
				s.StrandedMemory += r.left
			}
		}
	}
}
