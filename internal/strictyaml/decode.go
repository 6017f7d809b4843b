package strictyaml

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Format is a kind of file.
type Format struct {
	Kind     string // for messages: "policy"
	MaxBytes int    // a larger file is refused
}

// Document is a decoded file: it knows where its fields are.
type Document struct {
	kind string
	root *yaml.Node
}

// IsEmpty reports whether the file has no field at all.
func (d *Document) IsEmpty() bool { return isNull(d.root) }

// Decode reads one document into the struct that v points to, then runs check
// (if any) on it. Fields that the file leaves out, and those without a value,
// stay as they are.
//
// What is wrong with the file is returned as one *Error. Errors of check are
// left out where they may follow from a fault that decoding found. An error of r
// is returned as it is, wrapped.
func Decode(r io.Reader, f Format, v any, check func() error) (*Document, error) {
	data, err := io.ReadAll(io.LimitReader(r, int64(f.MaxBytes)+1))
	if err != nil {
		return nil, fmt.Errorf("reading the %s: %w", f.Kind, err)
	}
	var wrong faults
	if len(data) > f.MaxBytes {
		wrong.add(0, 0, "larger than %s; is this the right file?", size(f.MaxBytes))
		return nil, wrong.err(f.Kind)
	}
	doc := &Document{kind: f.Kind, root: parse(data, &wrong)}
	if err := wrong.err(f.Kind); err != nil {
		return nil, err
	}
	target := reflect.ValueOf(v).Elem()
	d := decoder{faults: &wrong, whole: target.Type(), unread: map[string]bool{}, json: json.Valid(data)}
	d.decode(&path{}, doc.root, target)
	if check != nil {
		doc.locate(check(), &wrong, d.unread)
	}
	if err := wrong.err(f.Kind); err != nil {
		return nil, err
	}
	return doc, nil
}

func size(n int) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}

// parse returns the root of the only document, nil for an empty file.
func parse(data []byte, wrong *faults) *yaml.Node {
	loader, err := yaml.NewLoader(bytes.NewReader(data))
	if err != nil {
		wrong.add(0, 0, "neither YAML nor JSON: %v", err)
		return nil
	}
	var first, second yaml.Node
	if err := loader.Load(&first); err != nil {
		if !errors.Is(err, io.EOF) {
			syntax(err, wrong)
		}
		return nil
	}
	switch err := loader.Load(&second); {
	case err == nil:
		wrong.add(second.Line, second.Column, "a second YAML document ('---'); allowed is one")
		return nil
	case !errors.Is(err, io.EOF):
		syntax(err, wrong)
		return nil
	}
	if first.Kind == yaml.DocumentNode && len(first.Content) == 1 {
		return first.Content[0]
	}
	return nil
}

// syntax reports an error of the YAML library, which stops at the first one.
func syntax(err error, wrong *faults) {
	var at *yaml.LoadError
	if errors.As(err, &at) {
		wrong.add(at.Mark.Line, at.Mark.Column, "neither YAML nor JSON: %s", at.Message)
		return
	}
	wrong.add(0, 0, "neither YAML nor JSON: %v", err)
}

// decoder fills a value from a tree of nodes.
type decoder struct {
	*faults
	whole  reflect.Type    // of the document, for suggestions
	unread map[string]bool // the parents of fields whose value could not be read
	json   bool            // the document is JSON
}

// unreadable reports a value that its field cannot hold.
func (d *decoder) unreadable(p *path, n *yaml.Node, format string, args ...any) {
	d.unread[p.parent()] = true
	if d.full() {
		d.more++
		return
	}
	d.add(n.Line, n.Column, "%s is %s%s", p, written(n), fmt.Sprintf(format, args...))
}

func (d *decoder) decode(p *path, n *yaml.Node, v reflect.Value) {
	if isNull(n) { // "devices:" with nothing behind it is the default
		return
	}
	if n.Kind == yaml.AliasNode {
		d.unreadable(p, n, "; allowed: the value itself")
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if text, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.decodeText(p, n, text)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.decodeStruct(p, n, v)
	case reflect.Map:
		d.decodeMap(p, n, v)
	case reflect.Slice:
		d.decodeSlice(p, n, v)
	default:
		d.decodeScalar(p, n, v)
	}
}

func (d *decoder) decodeStruct(p *path, n *yaml.Node, v reflect.Value) {
	names := fieldNames(v.Type())
	if n.Kind != yaml.MappingNode {
		d.unreadable(p, n, "; allowed: the fields %s", strings.Join(names, ", "))
		return
	}
	d.eachField(p, n, func(at *path, key, value *yaml.Node) {
		for i, name := range names {
			if name == at.name {
				d.decode(at, value, v.Field(i))
				return
			}
		}
		d.unknown(at, key, names)
	})
}

func (d *decoder) decodeMap(p *path, n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.unreadable(p, n, "; allowed: a group of fields")
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	key := reflect.New(v.Type().Key()).Elem()
	names := wordsOf(key)
	d.eachField(p, n, func(at *path, keyNode, value *yaml.Node) {
		if names != nil && !slices.Contains(names, at.name) {
			d.unknown(at, keyNode, names)
			return
		}
		one := reflect.New(v.Type().Elem()).Elem()
		d.decode(at, value, one)
		key.SetString(at.name)
		v.SetMapIndex(key, one)
	})
}

// eachField calls do for the fields of a mapping. A field that is given twice
// counts once.
func (d *decoder) eachField(p *path, n *yaml.Node, do func(at *path, key, value *yaml.Node)) {
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode {
			d.add(key.Line, key.Column, "%s has %s for the name of a field; allowed: text", p, written(key))
			continue
		}
		at := &path{up: p, name: key.Value, index: -1}
		if line, twice := lines[key.Value]; twice {
			d.add(key.Line, key.Column, "%s is given twice; line %d has it already", at, line)
			continue
		}
		lines[key.Value] = key.Line
		do(at, key, n.Content[i+1])
	}
}

func (d *decoder) decodeSlice(p *path, n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.unreadable(p, n, "; allowed: a list")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	at := path{up: p}
	for i, entry := range n.Content {
		at.index = i
		if isNull(entry) {
			d.unreadable(&at, entry, "; allowed: a value")
			continue
		}
		d.decode(&at, entry, v.Index(i))
	}
}
