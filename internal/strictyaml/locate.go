package strictyaml

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Locate gives the field errors that err joins their lines and columns. A field
// that the document does not have gets those of the group that it is missing
// in; a missing field of the document itself, and an error that names no field,
// get none. Nil stays nil.
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
		line, column, there := d.position(f.Field)
		if complete || there && !skip[parentOf(f.Field)] {
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
// value, and whether the document has the field; else that of the nearest group
// around it, and 0, 0 for the document itself.
func (d *Document) position(field string) (line, column int, there bool) {
	for n, at := d.root, ""; ; {
		key, value, below := step(n, at, field)
		switch {
		case value == nil:
			return line, column, false
		case isNull(value) && key != nil:
			line, column = key.Line, key.Column
		default:
			line, column = value.Line, value.Column
		}
		if below == field {
			return line, column, true
		}
		n, at = value, below
	}
}

// step goes from the node at a path to the one below it on the way to field;
// nil: there is none.
func step(n *yaml.Node, at, field string) (key, value *yaml.Node, below string) {
	if n == nil {
		return nil, nil, ""
	}
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			below = Join(at, n.Content[i].Value)
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
