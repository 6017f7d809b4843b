package strictyaml

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/numavisor/numavisor/internal/text"
)

// Worded is a text type that allows certain words only.
type Worded interface{ Words() []string }

// NumberUnmarshaler is a text type that also has a form as a whole number without quotes
// in documents that are JSON. Programs write those; what a person writes is YAML.
type NumberUnmarshaler interface{ UnmarshalNumber(number []byte) error }

// wordsOf returns the words that a value's type allows, nil: it has no such list.
func wordsOf(v reflect.Value) []string {
	if w, ok := v.Interface().(Worded); ok {
		return w.Words()
	}
	return nil
}

// maxShown is how many characters of a value a message shows.
const maxShown = 60

// written gives a value for a message.
func written(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.AliasNode:
		return text.Shorten(fmt.Sprintf("the alias %q", n.Value), maxShown)
	case n.Kind == yaml.MappingNode:
		return "a group of fields"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "empty"
	case isText(n):
		return text.Shorten(strconv.Quote(n.Value), maxShown)
	}
	return text.Shorten(n.Value, maxShown)
}

func isNull(n *yaml.Node) bool {
	return n == nil || n.Kind == 0 || n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// isText reports whether a scalar is none of null, a number, true and false.
func isText(n *yaml.Node) bool {
	switch n.ShortTag() {
	case "!!null", "!!int", "!!float", "!!bool":
		return false
	}
	return true
}

// truth reads the spellings of YAML 1.1: people write "movable: no".
func truth(n *yaml.Node) (value, ok bool) {
	if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
		return false, false
	}
	switch strings.ToLower(n.Value) {
	case "true", "yes", "on":
		return true, true
	case "false", "no", "off":
		return false, true
	}
	return false, false
}

func (d *decoder) decodeText(p *path, n *yaml.Node, v encoding.TextUnmarshaler) {
	if n.Kind != yaml.ScalarNode {
		d.unreadable(p, n, "; allowed: one value")
		return
	}
	read := v.UnmarshalText
	if number, is := v.(NumberUnmarshaler); is && d.json && n.ShortTag() == "!!int" {
		read = number.UnmarshalNumber
	}
	if err := read([]byte(n.Value)); err != nil {
		d.unreadable(p, n, ": %s", err)
	}
}

func (d *decoder) decodeScalar(p *path, n *yaml.Node, v reflect.Value) {
	kind := kindOf(v)
	if n.Kind != yaml.ScalarNode || !kind.set(n, v) {
		d.unreadable(p, n, "; allowed: %s", kind.allowed)
	}
}

// kind is how values of a Go type are written.
type kind struct {
	allowed string
	set     func(n *yaml.Node, v reflect.Value) bool // false: it is not one of these
}

func kindOf(v reflect.Value) kind {
	switch v.Kind() {
	case reflect.Int:
		return kind{"a whole number", setInt}
	case reflect.Float64:
		return kind{"a number", setFloat}
	case reflect.Bool:
		return kind{"true or false", setBool}
	case reflect.String:
		if words := wordsOf(v); words != nil {
			return kind{strings.Join(words, ", "), func(n *yaml.Node, v reflect.Value) bool {
				return setWord(n, v, words)
			}}
		}
		return kind{"text; put it in quotes", setText}
	default: // a fault of the program, not of a file
		panic(fmt.Sprintf("strictyaml: a field of type %v", v.Type()))
	}
}

// setInt also takes whole numbers that are written as JSON writes large ones: 1e3, 8.0.
func setInt(n *yaml.Node, v reflect.Value) bool {
	switch n.ShortTag() {
	case "!!int":
		i, err := strconv.ParseInt(n.Value, 0, 64)
		if err != nil || v.OverflowInt(i) {
			return false
		}
		v.SetInt(i)
		return true
	case "!!float":
		const exact = 1 << 53 // beyond it a float no longer holds every whole number
		f, err := strconv.ParseFloat(n.Value, 64)
		if err != nil || f != math.Trunc(f) || math.Abs(f) > exact {
			return false
		}
		v.SetInt(int64(f))
		return true
	}
	return false
}

func setFloat(n *yaml.Node, v reflect.Value) bool {
	if tag := n.ShortTag(); tag != "!!int" && tag != "!!float" {
		return false
	}
	f, err := strconv.ParseFloat(n.Value, 64) // refuses .inf and .nan
	if err != nil {
		return false
	}
	v.SetFloat(f)
	return true
}

func setBool(n *yaml.Node, v reflect.Value) bool {
	is, ok := truth(n)
	if ok {
		v.SetBool(is)
	}
	return ok
}

func setText(n *yaml.Node, v reflect.Value) bool {
	if !isText(n) {
		return false
	}
	v.SetString(n.Value)
	return true
}

// setWord takes a bare false or no for off, where off is a word: YAML 1.1 has
// them mean the same, and programs write off as false.
func setWord(n *yaml.Node, v reflect.Value, words []string) bool {
	word := n.Value
	if is, ok := truth(n); ok && !is && slices.Contains(words, "off") {
		word = "off"
	}
	if !slices.Contains(words, word) {
		return false
	}
	v.SetString(word)
	return true
}
