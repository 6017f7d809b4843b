package libvirt

import (
	"encoding/json"
	"fmt"

	"github.com/numavisor/numavisor/internal/guest"
)

// MetadataURI is the XML namespace under which a guest's intent is stored in
// its domain XML. libvirt preserves it over restarts of its daemon and of the
// guest.
const MetadataURI = "https://numavisor.dev/xmlns/1"

// The element with the intent: <numavisor:guest
// xmlns:numavisor=MetadataURI>JSON</numavisor:guest>.
const (
	metadataPrefix = "numavisor"
	metadataName   = "guest"
)

// Metadata is the record of intent: a guest's request and its placement.
type Metadata = guest.Intent

func metadataText(m Metadata) (string, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("VM %s: writing its intent: %w", m.Placement.Guest, err)
	}
	return string(text), nil
}

// parseMetadata reads Numavisor's element below <metadata>.
func parseMetadata(holder *element) (*Metadata, error) {
	var m Metadata
	if err := json.Unmarshal(holder.text, &m); err != nil {
		return nil, fmt.Errorf("metadata of namespace %s: %w", MetadataURI, err)
	}
	return &m, nil
}

// metadataElement finds Numavisor's element below <metadata>; nil if there is none.
func metadataElement(root *element) *element {
	for _, m := range root.all("metadata") {
		for _, c := range m.children {
			if isOurMetadata(c) {
				return c
			}
		}
	}
	return nil
}

func isOurMetadata(e *element) bool { return e.namespace() == MetadataURI }
