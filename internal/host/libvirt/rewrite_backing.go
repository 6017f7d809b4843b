package libvirt

import (
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// memoryBacking sets page size, allocation, and memfd as source of movable
// memory. It leaves a source or access that the XML sets: others need it
// (vhost-user, virtiofs); Cannot lists the consequences.
func (w *writer) memoryBacking() error {
	huge, write, err := w.hugePages()
	if err != nil {
		return err
	}
	b := w.root.child("memoryBacking")
	drop := map[string]bool{}
	var fresh []tag
	if write {
		fresh, drop["hugepages"] = append(fresh, huge), true
	}
	if w.wantsMemfd(b) {
		fresh = append(fresh, tag{name: "source", attrs: []pair{{"type", "memfd"}}})
		if b.child("access") == nil {
			// private access would store every written page twice: in the
			// memfd, and as anonymous copy
			fresh = append(fresh, tag{name: "access", attrs: []pair{{"mode", "shared"}}})
		}
	}
	switch allocation := b.child("allocation"); {
	case !w.placement.Immediate || w.placement.MemoryMode == guest.MemoryNone:
	case allocation == nil:
		fresh = append(fresh, tag{name: "allocation", attrs: []pair{{"mode", "immediate"}}})
	default:
		w.setAttrs(allocation, pair{"mode", "immediate"})
	}
	switch {
	case len(fresh) == 0:
	case b == nil:
		w.insertBehind(tag{name: "memoryBacking", children: fresh}, "memtune", "blkiotune", "currentMemory", "memory")
	default:
		w.setChildren(b, func(e *element) bool { return e.prefix == "" && drop[e.name] }, fresh)
	}
	return nil
}

// wantsMemfd reports whether memory that must be movable has no source yet.
// Pinned memory gains nothing from it.
func (w *writer) wantsMemfd(b *element) bool {
	d := w.domain
	private := b.child("access").attr("mode") == "private" || w.cellsArePrivate()
	return w.placement.Movable && b.child("source") == nil && !private && !d.Confidential && len(d.Config.Devices) == 0
}

func (w *writer) cellsArePrivate() bool {
	for _, c := range w.root.path("cpu", "numa").all("cell") {
		if c.attr("memAccess") == "private" {
			return true
		}
	}
	return false
}

// hugePages returns the element to write; write is false if the XML
// is right already.
func (w *writer) hugePages() (huge tag, write bool, err error) {
	want := w.placement.PageSize
	have := w.root.path("memoryBacking", "hugepages")
	if have == nil && want == 0 {
		return tag{}, false, nil
	}
	if have != nil {
		sizes, err := hugePageSizes(have)
		if err != nil {
			return tag{}, false, err
		}
		explicit := len(have.all("page")) > 0
		switch {
		case want == 0:
			return tag{}, false, pageContradiction("huge pages", "small pages")
		case explicit && (len(sizes) > 1 || sizes[0] != want):
			return tag{}, false, pageContradiction(sizesText(sizes), want.String())
		case explicit:
			return tag{}, false, nil
		}
	}
	return tag{name: "hugepages", children: []tag{
		{name: "page", attrs: []pair{{"size", kib(want)}, {"unit", "KiB"}}},
	}}, true, nil
}

func pageContradiction(xml, placement string) error {
	return &ContradictionError{
		Field:     "page size",
		XML:       xml,
		Placement: placement,
		Remedy:    "set page_size in the spec to what the XML has, or change the XML",
	}
}

func sizesText(sizes []topology.Bytes) string {
	parts := make([]string, len(sizes))
	for i, s := range sizes {
		parts[i] = s.String()
	}
	return list(parts)
}
