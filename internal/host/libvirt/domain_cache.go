package libvirt

import (
	"crypto/sha256"
	"sync"

	"github.com/numavisor/numavisor/internal/inventory"
)

// readings caches the parsed XML of guests. Between two lists of a host most
// guests do not change, and parsing their XML is a large part of the cost of a
// list. The results are shared: do not write to them.
type readings struct {
	mu   sync.Mutex
	last map[string]reading // by UUID
}

// reading is one domain's result, and its XML.
type reading struct {
	text   [sha256.Size]byte
	domain Domain
}

// read parses the XML of a guest unless it has not changed.
func (r *readings) read(uuid, xml string) (Domain, error) {
	text := sha256.Sum256([]byte(xml))
	r.mu.Lock()
	before, known := r.last[uuid]
	r.mu.Unlock()
	if known && before.text == text {
		return before.domain, nil
	}
	doc, err := parse([]byte(xml))
	if err != nil {
		return Domain{}, err
	}
	domain, err := doc.domain()
	if err != nil {
		return domain, err
	}
	domain.Config.SharedStorage = sharedStorage(doc.root, mountTable().reach)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[string]reading{}
	}
	r.last[uuid] = reading{text, domain}
	return domain, nil
}

// keep removes all guests but these.
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
