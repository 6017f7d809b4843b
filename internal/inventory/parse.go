package inventory

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/numavisor/numavisor/internal/topology"
)

// maxSize bounds an inventory that is read: 64 nodes with 1,000 VMs take some 10 MiB.
const maxSize = 256 * topology.MiB

// Parse reads one inventory as JSON, as 'numavisor capture' writes it, and
// checks it field by field: decisions are made from it as from a live host.
func Parse(r io.Reader) (Host, error) {
	var h Host
	d := json.NewDecoder(io.LimitReader(r, int64(maxSize)))
	if err := d.Decode(&h); err != nil {
		return h, fmt.Errorf("not an inventory: %w; make one with 'numavisor capture'", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return h, errors.New("more follows after the inventory; give one document, as 'numavisor capture' makes it")
	}
	if h.Version != Version {
		return h, fmt.Errorf(
			"inventory version %d; this program reads version %d: make one with its 'numavisor capture'", h.Version,
			Version)
	}
	if len(h.Topology.Nodes) == 0 {
		return h, errors.New("no nodes in the inventory: its topology is empty; make one with 'numavisor capture'")
	}
	h.Topology.Classify()
	if err := cmp.Or(h.Topology.Validate(), h.Validate()); err != nil {
		return h, fmt.Errorf("%w; give the document as 'numavisor capture' made it", err)
	}
	h.CheckIntents()
	return h, nil
}
