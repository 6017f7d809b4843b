package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/server/store"
)

// While servers are upgraded one after the other, records have members that the older servers do not know. A server
// that changes such a record keeps them: it merges what it writes with what is stored.

// understood encodes a stored record as this version understands it, by the prefix of its key. Other records are
// written whole by their authors, or never change.
var understood = map[string]func([]byte) ([]byte, error){
	store.VMs: again[fleet.VM], store.Hosts: again[fleet.Host], store.Projects: again[project],
	store.Users: again[user],
}

func again[T any](text []byte) ([]byte, error) {
	var v T
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// carry gives the records that a transaction replaces the members that this version does not know.
func (s *Server) carry(ctx context.Context, t *transaction) error {
	for i := range t.Put {
		p := &t.Put[i]
		understand := understood[p.Key[:strings.LastIndexByte(p.Key, '/')+1]]
		at := t.required(p.Key)
		if understand == nil || at == 0 {
			continue
		}
		old, err := s.Store.Look(ctx, p.Key)
		if err == nil && old.Revision < at || errors.Is(err, store.ErrNotFound) {
			old, err = s.Store.Get(ctx, p.Key) // the member is behind
		}
		if errors.Is(err, store.ErrNotFound) || err == nil && old.Revision != at {
			continue // the transaction will conflict
		}
		var known []byte
		if err == nil {
			known, err = understand(old.Value)
		}
		if err == nil {
			p.Value, err = withUnknown(p.Value, old.Value, known)
		}
		if err != nil {
			return fmt.Errorf("comparing %s with what is stored: %w", p.Key, err)
		}
	}
	return nil
}

// required returns the revision of a key that a transaction requires; 0: none, or that there is no such key.
func (t *transaction) required(key string) int64 {
	for _, c := range t.If {
		if c.Key == key {
			return c.Revision
		}
	}
	return 0
}

// withUnknown returns a value with the members of the old one that are not in known, which is the old one as this
// version understands it.
func withUnknown(next, old, known json.RawMessage) (json.RawMessage, error) {
	if bytes.Equal(old, known) {
		return next, nil // nearly always
	}
	var n, o, k map[string]json.RawMessage
	if json.Unmarshal(next, &n) != nil || json.Unmarshal(old, &o) != nil || json.Unmarshal(known, &k) != nil ||
		n == nil {
		return withUnknownElements(next, old, known)
	}
	for name, value := range o {
		was, isKnown := k[name]
		now, has := n[name]
		var err error
		switch {
		case !isKnown && !has:
			n[name] = value
		case isKnown && has && continues(name, now, was):
			n[name], err = withUnknown(now, value, was)
		}
		if err != nil {
			return nil, err
		}
	}
	return json.Marshal(n)
}

// withUnknownElements is withUnknown for the elements of lists of the same length; else the old list was replaced.
func withUnknownElements(next, old, known json.RawMessage) (json.RawMessage, error) {
	all := lists(next, old, known)
	if all == nil || len(all[0]) != len(all[1]) || len(all[0]) != len(all[2]) {
		return next, nil
	}
	for i := range all[0] {
		var err error
		if all[0][i], err = withUnknown(all[0][i], all[1][i], all[2][i]); err != nil {
			return nil, err
		}
	}
	return json.Marshal(all[0])
}

// lists returns the elements of lists; nil: one of them is none.
func lists(texts ...json.RawMessage) (out [][]json.RawMessage) {
	for _, text := range texts {
		var elements []json.RawMessage
		if json.Unmarshal(text, &elements) != nil || elements == nil {
			return nil
		}
		out = append(out, elements)
	}
	return out
}

// continues reports whether a member is about the same thing as before: a new placement or migration replaces the
// earlier one with all that was said of it.
func continues(name string, now, was json.RawMessage) bool {
	switch name {
	case "placement":
		return bytes.Equal(now, was)
	case "migration":
		var a, b struct{ Began json.RawMessage }
		return json.Unmarshal(now, &a) == nil && json.Unmarshal(was, &b) == nil && bytes.Equal(a.Began, b.Began)
	}
	return true
}
