package fake

import (
	"encoding/json"
	"fmt"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
)

// Definition stands for a domain XML: the configuration of a guest.
type Definition struct {
	Name   string           `json:"name"`
	Config inventory.Config `json:"config"`
	Intent *guest.Intent    `json:"intent,omitempty"` // nil: not managed by Numavisor
}

// Define returns the definition that is bound to a placement, as libvirt's
// domain XML would be.
func Define(s guest.Spec, p guest.Placement) Definition {
	d := Definition{
		Name:   s.Name,
		Config: inventory.Config{VCPUs: s.VCPUs, Memory: s.Memory, Source: "anonymous"},
		Intent: &guest.Intent{Spec: s, Placement: p},
	}
	if p.Movable {
		d.Config.Source, d.Config.Shared = "memfd", true
	}
	if p.Visible {
		for _, c := range p.Cells {
			cell := inventory.ConfigCell{ID: c.ID, VCPUs: c.VCPUs, Memory: c.Memory, Distances: map[guest.CellID]int{}}
			for to, distance := range c.Distances {
				cell.Distances[guest.CellID(to)] = distance
			}
			d.Config.Cells = append(d.Config.Cells, cell)
		}
	}
	for _, device := range p.Devices {
		if device.Passthrough {
			d.Config.Devices = append(d.Config.Devices, device.Address)
		}
	}
	return d.bound(*d.Intent)
}

// bound returns the definition with pins, numatune and backing of a placement.
func (d Definition) bound(intent guest.Intent) Definition {
	p, c := intent.Placement, &d.Config
	d.Intent = &intent
	c.PageSize, c.Immediate = p.PageSize, p.Immediate || p.PageSize > 0
	if c.PageSize > 0 && c.Source != "memfd" {
		c.Source = "hugetlbfs"
	}
	c.Pins = nil
	for _, v := range p.VCPUs {
		if !v.CPUs.IsEmpty() {
			pinVCPU(c, v.ID, p.StartPin(v))
		}
	}
	c.EmulatorPin, c.IOThreads, c.IOThreadPins = p.Emulator, p.IOThreads, nil
	for id := 1; id <= p.IOThreads && !p.IOThread.IsEmpty(); id++ {
		pinIOThread(c, id, p.IOThread)
	}
	c.NUMATune = tuneOf(p)
	return d
}

// tuneOf gives the numatune of a placement: an outer limit by mode strict, and
// a policy for each cell that the guest sees.
func tuneOf(p guest.Placement) *inventory.NUMATune {
	tune := &inventory.NUMATune{Mode: string(guest.MemoryStrict), Nodes: p.Nodes}
	switch {
	case p.MemoryMode == guest.MemoryNone:
		return nil
	case p.MemoryMode == guest.MemoryRestrictive:
		tune.Mode = string(guest.MemoryRestrictive)
	case !p.Visible && p.MemoryMode == guest.MemoryInterleave && p.Nodes.Len() > 1:
		tune.Mode = string(guest.MemoryInterleave)
	case p.Visible:
		for _, c := range p.Cells {
			tune.Cells = append(tune.Cells, inventory.CellTune{Cell: c.ID, Mode: string(p.MemoryMode), Nodes: c.Nodes})
		}
	}
	return tune
}

// Render is the definition of a guest that is bound to an intent, in the form
// that Start accepts.
func Render(i guest.Intent) (guest.Definition, error) {
	d := Define(i.Spec, i.Placement)
	d.Intent = &i
	text, err := json.Marshal(d)
	return guest.Definition{Name: d.Name, Text: text}, err
}

func parseDefinition(text []byte) (Definition, error) {
	var d Definition
	if err := json.Unmarshal(text, &d); err != nil {
		return d, fmt.Errorf("reading the definition of a guest: %w", err)
	}
	return d, nil
}
