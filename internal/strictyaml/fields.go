package strictyaml

import (
	"encoding"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/numavisor/numavisor/internal/text"
)

// path is a place in a document. It becomes text only for messages.
type path struct {
	up    *path
	name  string // of a field
	index int    // of a list's entry, where name is empty; -1: a field, whatever its name
}

// String gives "balance.guests.db1", "topology.cells[1].memory", or "the
// document" for its root. A name that could be taken for a path is quoted.
func (p *path) String() string {
	if s := p.text(); s != "" {
		return s
	}
	return "the document"
}

func (p *path) text() string {
	switch {
	case p.up == nil:
		return ""
	case p.index >= 0:
		return p.up.text() + "[" + strconv.Itoa(p.index) + "]"
	}
	return Join(p.up.text(), text.Shorten(p.name, maxShown))
}

// parent is the path of the group of fields that p is in.
func (p *path) parent() string {
	for p.up != nil && p.index >= 0 {
		p = p.up
	}
	if p.up == nil {
		return ""
	}
	return p.up.text()
}

// Join returns the path of a field in the group at a path. A name with other
// than letters, digits, "-" and "_" is quoted.
func Join(path, name string) string {
	odd := func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}
	if name == "" || strings.ContainsFunc(name, odd) {
		name = strconv.Quote(name)
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// unknown reports a field that does not exist, with what was probably meant:
// a name here, the same name elsewhere in the document, or all names here.
func (d *decoder) unknown(at *path, key *yaml.Node, names []string) {
	if d.full() {
		d.more++
		return
	}
	hint := "allowed: " + strings.Join(names, ", ")
	if name := text.Nearest(at.name, names); name != "" {
		hint = "did you mean " + Join(at.up.text(), name) + "?"
	}
	for _, whole := range allFields("", d.whole) {
		name := whole[strings.LastIndexByte(whole, '.')+1:]
		if text.SameLetters(at.name, name) && !slices.Contains(names, name) {
			hint = "did you mean " + whole + "?"
		}
	}
	d.add(key.Line, key.Column, "%s: no such field; %s", at, hint)
}

// fieldNames returns the JSON names of a struct's fields, in its order.
func fieldNames(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		names[i], _, _ = strings.Cut(t.Field(i).Tag.Get("json"), ",")
	}
	return names
}

// allFields returns the path of every field below t, lists' entries included.
func allFields(path string, t reflect.Type) []string {
	for !readsText(t) && (t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice) {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || readsText(t) {
		return nil
	}
	var all []string
	for i, name := range fieldNames(t) {
		all = append(all, Join(path, name))
		all = append(all, allFields(Join(path, name), t.Field(i).Type)...)
	}
	return all
}

func readsText(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}
