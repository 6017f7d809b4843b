package libvirt

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Bounds on foreign XML. libvirt's own limit for one document is 4 MiB
// (VIR_NET_MESSAGE strings); real domains are below 100 KiB and 20 levels.
const (
	maxXMLBytes = 4 << 20
	maxXMLDepth = 64
)

// element is a part of a document together with the offsets of its bytes, so
// that an edit can leave every other byte alone. Offsets: [start,open) is the
// start tag, [close,end) the end tag; a self-closed element has open == close
// == end.
type element struct {
	prefix, name string // as written
	attrs        []xml.Attr
	text         []byte // its own character data, without that of its children
	parent       *element
	children     []*element

	start, open, close, end int
}

// document is a parsed domain XML and its bytes.
type document struct {
	src  []byte
	root *element
}

// parse reads a domain XML. It refuses constructs that libvirt never writes and
// that parsers interpret in different ways: document types, entities, encodings
// other than UTF-8.
func parse(src []byte) (*document, error) {
	if len(src) > maxXMLBytes {
		return nil, fmt.Errorf("domain XML: %d bytes, more than the %d allowed", len(src), maxXMLBytes)
	}
	dec := xml.NewDecoder(bytes.NewReader(src))
	doc := &document{src: src}
	var open *element
	for {
		from := int(dec.InputOffset())
		token, err := dec.RawToken()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("domain XML: %w", err)
		}
		if open, err = doc.take(token, open, from, int(dec.InputOffset())); err != nil {
			line, _ := dec.InputPos()
			return nil, fmt.Errorf("domain XML: line %d: %w", line, err)
		}
	}
	switch {
	case open != nil:
		return nil, fmt.Errorf("domain XML: ends inside <%s>", open.fullName())
	case doc.root == nil:
		return nil, errors.New("domain XML: contains no element")
	case doc.root.prefix != "" || doc.root.name != "domain":
		return nil, fmt.Errorf(
			"domain XML: the outermost element is <%s>, not <domain>; pass the output of \"virsh dumpxml GUEST\"",
			doc.root.fullName())
	}
	return doc, nil
}

// take adds one token at [from,to) and returns the element that is open after
// it.
func (doc *document) take(token xml.Token, open *element, from, to int) (*element, error) {
	switch t := token.(type) {
	case xml.StartElement:
		e := &element{prefix: t.Name.Space, name: t.Name.Local, attrs: t.Copy().Attr, parent: open, start: from,
			open: to}
		switch {
		case open != nil:
			open.children = append(open.children, e)
		case doc.root != nil:
			return nil, fmt.Errorf("a second outermost element <%s>", e.fullName())
		default:
			doc.root = e
		}
		if e.depth() > maxXMLDepth {
			return nil, fmt.Errorf("elements are nested deeper than %d", maxXMLDepth)
		}
		return e, nil
	case xml.EndElement:
		if open == nil || open.prefix != t.Name.Space || open.name != t.Name.Local {
			return nil, fmt.Errorf("</%s> closes nothing", t.Name.Local)
		}
		open.close, open.end = from, to
		return open.parent, nil
	case xml.CharData:
		if open != nil {
			open.text = append(open.text, t...)
		} else if strings.Trim(string(t), " \t\r\n\ufeff") != "" {
			return nil, errors.New("text outside of the outermost element")
		}
	case xml.Directive:
		return nil, errors.New("document types and entities are not allowed")
	}
	return open, nil
}

func (e *element) depth() int {
	n := 0
	for ; e != nil; e = e.parent {
		n++
	}
	return n
}

func (e *element) fullName() string {
	if e.prefix == "" {
		return e.name
	}
	return e.prefix + ":" + e.name
}

// selfClosed reports whether the element is written <name/>.
func (e *element) selfClosed() bool { return e.open == e.end }

// child returns the first child of that name in libvirt's own (empty) namespace.
// It may be called on nil.
func (e *element) child(name string) *element {
	if all := e.all(name); len(all) > 0 {
		return all[0]
	}
	return nil
}

// path follows child for each name; nil if one is missing.
func (e *element) path(names ...string) *element {
	for _, n := range names {
		e = e.child(n)
	}
	return e
}

// all returns the children of that name in libvirt's own namespace.
func (e *element) all(name string) []*element {
	if e == nil {
		return nil
	}
	var found []*element
	for _, c := range e.children {
		if c.name == name && c.prefix == "" {
			found = append(found, c)
		}
	}
	return found
}

// attr returns an attribute's value, "" if there is none. It may be called on nil.
func (e *element) attr(name string) string {
	if e == nil {
		return ""
	}
	for _, a := range e.attrs {
		if a.Name.Space == "" && a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// trimmed returns the element's text without space around it; "" for nil.
func (e *element) trimmed() string {
	if e == nil {
		return ""
	}
	return strings.TrimSpace(string(e.text))
}

// namespace resolves the element's prefix to its URI.
func (e *element) namespace() string {
	for at := e; at != nil; at = at.parent {
		for _, a := range at.attrs {
			bound := a.Name.Space == "xmlns" && a.Name.Local == e.prefix
			if bound || (e.prefix == "" && a.Name.Space == "" && a.Name.Local == "xmlns") {
				return a.Value
			}
		}
	}
	return ""
}
