package operate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/numavisor/numavisor/internal/inventory"
)

// maxBinding bounds what one VM adds to the journal, whose files are rotated at
// 4 MiB. A VM with 500 vCPUs, each with a pin of its own, has 30 KiB.
const maxBinding = 64 << 10

// FormerBinding returns the part of a guest's stored configuration that binding
// the guest changes, for undo. It is empty for a guest that has a placement
// (undo writes that one), for one without a stored configuration, and if it is
// too large for the journal.
func (h *Host) FormerBinding(ctx context.Context, g *inventory.Guest) (string, error) {
	if g.Placement != nil || !g.Persistent || h.Control == nil {
		return "", nil
	}
	former, err := h.Control.StoredBinding(ctx, g.Name)
	if err != nil {
		return "", fmt.Errorf("reading the configuration for the next start, which undo restores: %w", err)
	}
	if len(former) > maxBinding {
		return "", nil
	}
	return former, nil
}

// BindingDigest identifies the binding that an effect left in a guest's stored
// configuration: undo refuses to overwrite another one. It is empty for a guest
// without a stored configuration, and if that cannot be read.
func (h *Host) BindingDigest(ctx context.Context, g *inventory.Guest) string {
	if !g.Persistent || h.Control == nil {
		return ""
	}
	now, err := h.Control.StoredBinding(ctx, g.Name)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256([]byte(now))
	return hex.EncodeToString(sum[:])
}
