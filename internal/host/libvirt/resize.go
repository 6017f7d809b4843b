package libvirt

import (
	"context"
	"fmt"
	"strconv"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Resize returns the XML of a guest that does not run with the vCPUs and the memory of an intent's placement, bound to
// it. The guest gets all of them at its start. If the XML has parts that name cells, or memory devices, the error is a
// *ContradictionError.
func Resize(domainXML []byte, intent Metadata) ([]byte, error) {
	doc, err := parse(domainXML)
	if err != nil {
		return nil, err
	}
	d, err := doc.domain()
	if err == nil {
		err = checkSingle(doc.root)
	}
	if err == nil {
		err = resizable(doc.root)
	}
	if err != nil {
		return nil, fmt.Errorf("resizing VM %q: %w", d.Name, err)
	}
	ed := &editor{doc: doc}
	ed.size(doc.root, &intent.Placement)
	return Rewrite(ed.result(), intent.Placement, intent)
}

// resizable refuses a domain whose devices depend on its size.
func resizable(root *element) error {
	refuse := func(what string) error {
		return &ContradictionError{Field: "size", XML: "it has " + what, Placement: "has another size",
			Remedy: "remove these elements first"}
	}
	if ties := tiedToCells(root); len(ties) > 0 {
		return refuse(list(ties))
	}
	if n := len(hotMemory(root)); n > 0 {
		return refuse(fmt.Sprintf("memory devices (%d)", n))
	}
	return nil
}

// size writes the vCPUs and the memory of a placement. The cells go, since they have the former size: Rewrite writes
// those of the placement.
func (ed *editor) size(root *element, p *guest.Placement) {
	var memory topology.Bytes
	for _, c := range p.Cells {
		memory = memory.Plus(c.Memory)
	}
	ed.setText(root.child("memory"), kib(memory), pair{"unit", "KiB"})
	// Without these two, a guest starts with all of its memory and all of its vCPUs.
	for _, name := range []string{"currentMemory", "vcpus"} {
		for _, e := range root.all(name) {
			ed.remove(e)
		}
	}
	n := strconv.Itoa(len(p.VCPUs))
	if e := root.child("vcpu"); e != nil {
		ed.setText(e, n, pair{"current", ""})
	} else {
		ed.insertAfter(root.child("memory"), tag{name: "vcpu", text: n})
	}
	cpu := root.child("cpu")
	if numa := cpu.child("numa"); numa != nil {
		ed.remove(numa)
	}
	if e := cpu.child("topology"); e != nil && shown(e) != len(p.VCPUs) {
		ed.replace(e.start, e.end, cpuTopology(*p).render(""))
	}
}

// shown is how many vCPUs a <topology> has; 0: it is not known.
func shown(e *element) int {
	n := 1
	for _, level := range []string{"sockets", "dies", "clusters", "cores", "threads"} {
		text := e.attr(level)
		if text == "" {
			continue
		}
		count, err := strconv.Atoi(text)
		if err != nil || count < 1 || count > maxVCPUs {
			return 0
		}
		n *= count
	}
	return n
}

// setText replaces the content of an element, and attributes as setAttrs does.
func (ed *editor) setText(e *element, text string, values ...pair) {
	ed.setAttrs(e, values...)
	ed.replace(e.open, e.close, escape(text))
}

// Resize gives the stored configuration of a guest that does not run the size and the binding of an intent. A guest
// without a stored configuration is guest.ErrTransient.
func (d *Driver) Resize(ctx context.Context, name string, intent Metadata) error {
	old, err := d.XML(ctx, name, Stored)
	if err != nil {
		return err
	}
	resized, err := Resize(old, intent)
	if err != nil {
		return fail("resizing", name, err)
	}
	return d.Define(ctx, name, resized)
}
