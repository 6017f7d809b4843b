package guest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

func number(field *int, text string) error {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		return errors.New("allowed: a whole number, 0 or more")
	}
	*field = int(n)
	return nil
}

func size(field *topology.Bytes, text string) (err error) {
	*field, err = topology.ParseSize(text)
	return err
}

func set[ID ~int](field *topology.Set[ID], text string) (err error) {
	*field, err = topology.ParseSet[ID](text)
	return err
}

func truth(field *bool, text string) error {
	v, err := strconv.ParseBool(text)
	if err != nil {
		return errors.New("allowed: true or false")
	}
	*field = v
	return nil
}

func word[T ~string](field *T, text string, allowed ...T) error {
	if !slices.Contains(allowed, T(text)) {
		return fmt.Errorf("allowed: %s", strings.Trim(fmt.Sprint(allowed), "[]"))
	}
	*field = T(text)
	return nil
}

// setTopology reads off, auto, mirror or a number of cells.
func setTopology(s *Spec, text string) error {
	if count, err := strconv.Atoi(text); err == nil && count >= 1 && count <= maxVCPUs {
		s.Topology = TopologySpec{Mode: TopologyCells, Count: count}
		return nil
	}
	mode := TopologyMode(text)
	if mode != TopologyOff && mode != TopologyAuto && mode != TopologyMirror {
		return fmt.Errorf("allowed: off, auto, mirror, or a number of cells from 1 to %d", maxVCPUs)
	}
	s.Topology = TopologySpec{Mode: mode}
	return nil
}

// setCells reads "4:8G,4:8G".
func setCells(s *Spec, text string) error {
	var cells []CellSpec
	for _, part := range strings.Split(text, ",") {
		vcpus, memory, ok := strings.Cut(part, ":")
		if !ok {
			return fmt.Errorf("cell %q; allowed: vCPUs:memory for each cell, for example 4:8G,4:8G", part)
		}
		var c CellSpec
		if err := number(&c.VCPUs, vcpus); err != nil {
			return fmt.Errorf("vCPUs of cell %q: %w", part, err)
		}
		if err := size(&c.Memory, memory); err != nil {
			return fmt.Errorf("memory of cell %q: %w", part, err)
		}
		cells = append(cells, c)
	}
	s.Topology = TopologySpec{Mode: TopologyCells, Count: len(cells), Cells: cells}
	return nil
}

// addDevice reads "0000:3b:00.0,required,passthrough".
func addDevice(s *Spec, text string) error {
	address, rest, _ := strings.Cut(text, ",")
	d := DeviceSpec{Address: fullAddress(address)}
	if !pciAddress.MatchString(d.Address) {
		return fmt.Errorf("address %q; allowed: a PCI address such as 0000:3b:00.0 (see lspci -D)", address)
	}
	for option := range strings.SplitSeq(rest, ",") {
		switch option {
		case "":
		case "required":
			d.Required = true
		case "passthrough":
			d.Passthrough = true
		default:
			return fmt.Errorf("option %q; allowed: required, passthrough", option)
		}
	}
	s.Devices = append(slices.Clip(s.Devices), d)
	return nil
}
