package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
)

// Ref names the object that a gap or an alarm is about: the host, a node, a
// part of one of these, or a guest. Refs are compared with ==. The zero value
// is the host.
type Ref struct {
	kind refKind
	node topology.NodeID
	name string // of the guest, or of the part
}

type refKind uint8

const (
	refHost refKind = iota
	refNode
	refGuest
)

// HostRef names the host.
func HostRef() Ref { return Ref{} }

// HostPartRef names something on the host that is neither a node nor a guest.
func HostPartRef(part string) Ref { return Ref{name: part} }

// NodeRef names a node.
func NodeRef(id topology.NodeID) Ref { return Ref{kind: refNode, node: id} }

// NodePartRef names a part of a node, such as its pool of 2 MiB pages.
func NodePartRef(id topology.NodeID, part string) Ref {
	return Ref{kind: refNode, node: id, name: part}
}

// GuestRef names a guest. A guest has no parts: its name may hold any text.
func GuestRef(name string) Ref { return Ref{kind: refGuest, name: name} }

// IsHost reports whether r is the host itself.
func (r Ref) IsHost() bool { return r == Ref{} }

// Node returns the node that r is, or is a part of.
func (r Ref) Node() (id topology.NodeID, ok bool) { return r.node, r.kind == refNode }

// Guest returns the name of the guest that r is.
func (r Ref) Guest() (name string, ok bool) {
	if r.kind != refGuest {
		return "", false
	}
	return r.name, true
}

// Whole returns the host or the node that r is a part of; r itself if it is no part.
func (r Ref) Whole() Ref {
	if r.kind != refGuest {
		r.name = ""
	}
	return r
}

// String returns the text of documents and messages: "host", "node 3",
// "guest web1", and for a part "node 3: 2 MiB pages".
func (r Ref) String() string {
	var whole string
	switch r.kind {
	case refGuest:
		return guestPrefix + r.name
	case refNode:
		whole = nodePrefix + strconv.Itoa(int(r.node))
	default:
		whole = hostText
	}
	if r.name != "" {
		return whole + partPrefix + r.name
	}
	return whole
}

const (
	hostText    = "host"
	nodePrefix  = "node "
	guestPrefix = "guest "
	partPrefix  = ": "
)

// ParseRef reads the text that String returns. It is strict: whatever it
// accepts, String returns again.
func ParseRef(text string) (Ref, error) {
	if name, ok := strings.CutPrefix(text, guestPrefix); ok {
		if name == "" {
			return Ref{}, fmt.Errorf("object %q: the guest has no name", text)
		}
		return GuestRef(name), nil
	}
	whole, part, hasPart := strings.Cut(text, partPrefix)
	var r Ref
	if digits, ok := strings.CutPrefix(whole, nodePrefix); ok {
		id, err := strconv.ParseUint(digits, 10, 31)
		if err != nil {
			return Ref{}, fmt.Errorf("object %q: %q is not a node id", text, digits)
		}
		r = NodeRef(topology.NodeID(id))
	} else if whole != hostText {
		return Ref{}, fmt.Errorf(`object %q: known are "host", "node ID" and "guest NAME"`, text)
	}
	r.name = part
	if hasPart && part == "" || r.String() != text {
		return Ref{}, fmt.Errorf("object %q: want it written as %q", text, r)
	}
	return r, nil
}

// Equal is ==; go-cmp asks for it.
func (r Ref) Equal(o Ref) bool { return r == o }

// Compare orders guests by name first, then the host, then nodes by id.
func (r Ref) Compare(o Ref) int {
	rank := [...]int{refGuest: 0, refHost: 1, refNode: 2}
	return cmp.Or(cmp.Compare(rank[r.kind], rank[o.kind]), cmp.Compare(r.node, o.node), cmp.Compare(r.name, o.name))
}

// MarshalText writes the text that ParseRef reads.
func (r Ref) MarshalText() ([]byte, error) {
	if r.kind == refGuest && r.name == "" {
		return nil, errors.New("an object that is a guest without a name")
	}
	return []byte(r.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (r *Ref) UnmarshalText(text []byte) (err error) {
	*r, err = ParseRef(string(text))
	return err
}
