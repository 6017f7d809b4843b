package libvirt

import (
	"bytes"
	"encoding/xml"
	"slices"
	"strings"
)

// editor collects replacements of byte ranges of one document. It leaves all
// other bytes alone, which makes Rewrite safe for unknown elements.
type editor struct {
	doc   *document
	edits []edit
}

type edit struct {
	from, to int
	text     string
}

func (ed *editor) replace(from, to int, text string) {
	ed.edits = append(ed.edits, edit{from, to, text})
}

// result applies the edits. They never overlap; at the same place insertions
// come first, in the order of their requests.
func (ed *editor) result() []byte {
	slices.SortStableFunc(ed.edits, func(a, b edit) int {
		if a.from != b.from {
			return a.from - b.from
		}
		return min(a.to-a.from, 1) - min(b.to-b.from, 1)
	})
	var out bytes.Buffer
	at := 0
	for _, e := range ed.edits {
		out.Write(ed.doc.src[at:e.from])
		out.WriteString(e.text)
		at = e.to
	}
	out.Write(ed.doc.src[at:])
	return out.Bytes()
}

// lead is the line break and indentation before an element, "" if the element
// does not begin a line.
func (ed *editor) lead(e *element) string {
	i := e.start
	for i > 0 && (ed.doc.src[i-1] == ' ' || ed.doc.src[i-1] == '\t') {
		i--
	}
	if i == 0 || ed.doc.src[i-1] != '\n' {
		return ""
	}
	return string(ed.doc.src[i-1 : e.start])
}

// childLead is the lead for new children of e: that of its first child, else
// one step deeper than e itself.
func (ed *editor) childLead(e *element) string {
	if len(e.children) > 0 {
		return ed.lead(e.children[0])
	}
	return deeper(ed.lead(e))
}

func deeper(lead string) string {
	if lead == "" {
		return ""
	}
	return lead + "  "
}

// remove removes an element together with its line.
func (ed *editor) remove(e *element) { ed.replace(e.start-len(ed.lead(e)), e.end, "") }

// insertAfter puts a new element behind its sibling.
func (ed *editor) insertAfter(sibling *element, t tag) {
	ed.replace(sibling.end, sibling.end, t.render(ed.lead(sibling)))
}

// setChildren replaces Numavisor's children of e by new ones, at the place of
// the first of them. Without new ones, an element that would become empty is
// removed as well.
func (ed *editor) setChildren(e *element, ours func(*element) bool, fresh []tag) {
	var old []*element
	for _, c := range e.children {
		if ours(c) {
			old = append(old, c)
		}
	}
	if len(fresh) == 0 && len(old) > 0 && ed.holdsOnly(e, old) {
		ed.remove(e)
		return
	}
	var text strings.Builder
	lead := ed.childLead(e)
	for _, t := range fresh {
		text.WriteString(t.render(lead))
	}
	switch {
	case len(old) > 0:
		at := old[0].start - len(ed.lead(old[0]))
		ed.replace(at, at, text.String())
	case len(fresh) == 0:
	case e.selfClosed():
		head := bytes.TrimRight(bytes.TrimSuffix(ed.doc.src[e.start:e.end], []byte("/>")), " \t\r\n")
		ed.replace(e.start, e.end, string(head)+">"+text.String()+ed.lead(e)+"</"+e.fullName()+">")
	default:
		ed.replace(ed.contentEnd(e), e.close, text.String()+ed.lead(e))
	}
	for _, c := range old {
		ed.remove(c)
	}
}

// contentEnd is the end of e's content, without the space before its end tag.
func (ed *editor) contentEnd(e *element) int {
	return e.open + len(bytes.TrimRight(ed.doc.src[e.open:e.close], " \t\r\n"))
}

// holdsOnly reports whether e has no content (comments count) except the given
// children.
func (ed *editor) holdsOnly(e *element, some []*element) bool {
	at := e.open
	for _, c := range some {
		if len(bytes.TrimSpace(ed.doc.src[at:c.start])) > 0 {
			return false
		}
		at = c.end
	}
	return len(bytes.TrimSpace(ed.doc.src[at:e.close])) == 0
}

// setAttrs rewrites the start tag of e with other values: an empty value
// removes the attribute. The order and all other content of the tag stay.
func (ed *editor) setAttrs(e *element, values ...pair) {
	attrs := slices.Clone(e.attrs)
	changed := false
	for _, v := range values {
		i := slices.IndexFunc(attrs, func(a xml.Attr) bool { return a.Name.Space == "" && a.Name.Local == v.name })
		switch {
		case i < 0 && v.value == "", i >= 0 && attrs[i].Value == v.value && v.value != "":
			continue
		case i < 0:
			attrs = append(attrs, xml.Attr{Name: xml.Name{Local: v.name}, Value: v.value})
		case v.value == "":
			attrs = slices.Delete(attrs, i, i+1)
		default:
			attrs[i].Value = v.value
		}
		changed = true
	}
	if !changed {
		return
	}
	t := tag{name: e.fullName()}
	for _, a := range attrs {
		name := a.Name.Local
		if a.Name.Space != "" {
			name = a.Name.Space + ":" + name
		}
		t.attrs = append(t.attrs, pair{name, a.Value})
	}
	end := ">"
	if e.selfClosed() {
		end = "/>"
	}
	ed.replace(e.start, e.open, t.head()+end)
}

// tag is an element to write.
type tag struct {
	name     string
	attrs    []pair
	text     string
	children []tag
}

type pair struct{ name, value string }

// render writes the tag behind lead, children one step deeper; without a line
// break in lead everything goes on one line.
func (t tag) render(lead string) string {
	var b strings.Builder
	b.WriteString(lead + t.head())
	switch {
	case t.text != "":
		b.WriteString(">" + escape(t.text) + "</" + t.name + ">")
	case len(t.children) > 0:
		b.WriteString(">")
		for _, c := range t.children {
			b.WriteString(c.render(deeper(lead)))
		}
		b.WriteString(lead + "</" + t.name + ">")
	default:
		b.WriteString("/>")
	}
	return b.String()
}

func (t tag) head() string {
	var b strings.Builder
	b.WriteString("<" + t.name)
	for _, a := range t.attrs {
		b.WriteString(" " + a.name + "='" + escape(a.value) + "'")
	}
	return b.String()
}

var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&apos;",
	"\t", "&#9;", "\n", "&#10;", "\r", "&#13;")

func escape(s string) string { return escaper.Replace(s) }
