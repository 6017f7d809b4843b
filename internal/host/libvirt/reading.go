package libvirt

import (
	"crypto/sha256"
	"sync"

	"github.com/numavisor/numavisor/internal/inventory"
)

// readings are what the XML of guests said when it was last read. Between two
// lists of a host most guests do not change, and reading their XML is a good
// part of what a list takes. What is handed out is shared: it is not to be
// written to.
type readings struct {
	mu   sync.Mutex
	last map[string]reading // by UUID
}

// reading is one domain's, and what it was read from.
type reading struct {
	text   [sha256.Size]byte
	domain Domain
}

// read parses the XML of a guest unless it says what it said before.
func (r *readings) read(uuid, xml string) (Domain, error) {
	text := sha256.Sum256([]byte(xml))
	r.mu.Lock()
	before, known := r.last[uuid]
	r.mu.Unlock()
	if known && before.text == text {
		return before.domain, nil
	}
	domain, err := ParseDomain([]byte(xml))
	if err != nil {
		return domain, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[string]reading{}
	}
	r.last[uuid] = reading{text, domain}
	return domain, nil
}

// keep forgets all guests but these.
func (r *readings) keep(guests []inventory.Guest) {
	there := make(map[string]bool, len(guests))
	for _, g := range guests {
		there[g.UUID] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for uuid := range r.last {
		if !there[uuid] {
			delete(r.last, uuid)
		}
	}
}
