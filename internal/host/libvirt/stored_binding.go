package libvirt

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
)

// boundParts are the elements that Rewrite and the pins change, with those of
// their children that these replace. Two others have rules of their own:
// <vcpu>, of which only attributes change, and the intent in <metadata>.
var boundParts = []struct {
	name     string
	children []string
}{
	{"memoryBacking", []string{"hugepages", "source", "access", "allocation"}},
	{"cputune", []string{"vcpupin", "emulatorpin", "iothreadpin"}},
	{"numatune", []string{"memory", "memnode"}},
	{"cpu", []string{"numa"}},
}

// StoredBinding returns the part of a guest's stored configuration that
// Configure and the pins change, without the intent, as XML. It contains no
// secrets. A guest without a stored configuration is guest.ErrTransient.
func (d *Driver) StoredBinding(ctx context.Context, name string) (string, error) {
	stored, err := d.XML(ctx, name, Stored)
	if err != nil {
		return "", err
	}
	part, err := bindingIn(stored)
	return part, fail("reading the binding of its next start", name, err)
}

// RestoreBinding writes a result of StoredBinding back. All other parts of the
// stored configuration stay, and so does the running guest.
func (d *Driver) RestoreBinding(ctx context.Context, name, former string) error {
	const op = "restoring the binding of its next start"
	stored, err := d.XML(ctx, name, Stored)
	if err != nil {
		return err
	}
	restored, err := withBinding(stored, former)
	if err != nil {
		return fail(op, name, err)
	}
	if err := d.Define(ctx, name, restored); err != nil {
		return err
	}
	now, err := d.StoredBinding(ctx, name)
	if err == nil && now != former {
		err = fail(op, name, fmt.Errorf("%w: libvirt stored another one", guest.ErrRefused))
	}
	return err
}

// bindingIn extracts from a domain XML the part that boundParts names.
func bindingIn(domainXML []byte) (string, error) {
	doc, err := parse(domainXML)
	if err != nil {
		return "", err
	}
	part := tag{name: "domain"}
	if attrs := pinOfAll(doc.root.child("vcpu")); len(attrs) > 0 {
		part.children = append(part.children, tag{name: "vcpu", attrs: attrs})
	}
	for _, p := range boundParts {
		if e := doc.root.child(p.name); e != nil {
			part.children = append(part.children, tag{name: p.name, children: copies(e, p.children)})
		}
	}
	return part.render(""), nil
}

// pinOfAll are the attributes of <vcpu> that place vCPUs without a pin of their
// own.
func pinOfAll(vcpu *element) []pair {
	var attrs []pair
	for _, name := range []string{"placement", "cpuset"} {
		if value := vcpu.attr(name); value != "" {
			attrs = append(attrs, pair{name, value})
		}
	}
	return attrs
}

// copies returns the children of e that have one of the names.
func copies(e *element, names []string) []tag {
	var all []tag
	if e == nil {
		return nil
	}
	for _, c := range e.children {
		if isNamed(c, names) {
			all = append(all, copyOf(c))
		}
	}
	return all
}

func isNamed(e *element, names []string) bool {
	return e.prefix == "" && slices.Contains(names, e.name)
}

func copyOf(e *element) tag {
	t := tag{name: e.fullName()}
	for _, a := range e.attrs {
		name := a.Name.Local
		if a.Name.Space != "" {
			name = a.Name.Space + ":" + name
		}
		t.attrs = append(t.attrs, pair{name, a.Value})
	}
	for _, c := range e.children {
		t.children = append(t.children, copyOf(c))
	}
	if len(t.children) == 0 {
		t.text = strings.TrimSpace(string(e.text))
	}
	return t
}

// withBinding returns a domain XML with a result of bindingIn in place of what
// it has of these parts.
func withBinding(domainXML []byte, former string) ([]byte, error) {
	doc, err := parse(domainXML)
	if err != nil {
		return nil, err
	}
	was, err := parse([]byte(former))
	if err != nil {
		return nil, err
	}
	if err := checkSingle(doc.root); err != nil {
		return nil, err
	}
	w := &writer{editor: editor{doc: doc}, root: doc.root}
	if vcpu := doc.root.child("vcpu"); vcpu != nil {
		old := was.root.child("vcpu")
		w.setAttrs(vcpu, pair{"placement", old.attr("placement")}, pair{"cpuset", old.attr("cpuset")})
	}
	for _, p := range boundParts {
		now, old := doc.root.child(p.name), was.root.child(p.name)
		fresh := copies(old, p.children)
		switch {
		case now == nil && len(fresh) > 0:
			w.insertBehind(tag{name: p.name, children: fresh}, "vcpu", "currentMemory", "memory")
		case now == nil:
		case old != nil && len(fresh) == 0: // the element itself was there before, with content of others
			for _, c := range now.children {
				if isNamed(c, p.children) {
					w.remove(c)
				}
			}
		default:
			w.setChildren(now, func(e *element) bool { return isNamed(e, p.children) }, fresh)
		}
	}
	return w.result(), nil
}
