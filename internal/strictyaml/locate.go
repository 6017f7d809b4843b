package strictyaml

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Locate gives the field errors that err joins their lines and columns. A field
// that the document does not have, and an error that names no field, get none.
// Nil stays nil.
func (d *Document) Locate(err error) error {
	var wrong faults
	d.locate(err, &wrong, nil)
	return wrong.err(d.kind)
}

// locate adds the errors that err joins to what is wrong. Of a document that
// could not be read in full, it leaves out errors that may follow from that: of
// fields whose parents are in skip, of missing fields and of no field.
func (d *Document) locate(err error, wrong *faults, skip map[string]bool) {
	complete := len(wrong.list) == 0
	fields, others := fieldErrors(err)
	for _, f := range fields {
		line, column := d.position(f.Field)
		if complete || line > 0 && !skip[parentOf(f.Field)] {
			wrong.add(line, column, "%v", f)
		}
	}
	for _, err := range others {
		if complete {
			wrong.add(0, 0, "%v", err)
		}
	}
}

// parentOf cuts off the last name of a path, with the indices behind it.
func parentOf(field string) string {
	return field[:max(0, strings.LastIndexByte(field, '.'))]
}

// position returns where the value of a field begins, its name where it has no
// value; 0, 0: the document has no such field.
func (d *Document) position(field string) (line, column int) {
	n, at, key := d.root, "", d.root
	for n != nil && at != field {
		key, n, at = step(n, at, field)
	}
	switch {
	case n == nil:
		return 0, 0
	case isNull(n) && key != nil:
		n = key
	}
	return n.Line, n.Column
}

// step goes from the node at a path to the one below it on the way to field;
// nil: there is none.
func step(n *yaml.Node, at, field string) (key, value *yaml.Node, below string) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			below = join(at, plainOrQuoted(n.Content[i].Value))
			if rest, ok := strings.CutPrefix(field, below); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
				return n.Content[i], n.Content[i+1], below
			}
		}
	case yaml.SequenceNode:
		number, _, _ := strings.Cut(strings.TrimPrefix(field[len(at):], "["), "]")
		if i, err := strconv.Atoi(number); err == nil && i >= 0 && i < len(n.Content) {
			return nil, n.Content[i], at + "[" + number + "]"
		}
	default: // has nothing below it
	}
	return nil, nil, ""
}
