package guest

// Intent is a guest's spec and placement, as the hypervisor stores them with
// the guest.
type Intent struct {
	// Host is the host that the placement is for. It travels with the guest when
	// the guest migrates. Intents of earlier versions had none; they count as this
	// host's.
	Host      HostIdentity `json:"host,omitzero"`
	Spec      Spec         `json:"spec"`
	Placement Placement    `json:"placement"`
	// Adopted says that Numavisor did not create the guest, and bound it later.
	Adopted bool `json:"adopted,omitempty"`
}

// HostIdentity distinguishes one host from others.
type HostIdentity struct {
	// ID is stable over restarts and changes of the name; empty: not known.
	ID string `json:"id,omitempty"`
	// Name is the host's name when the identity was read. It is for people.
	Name string `json:"name,omitempty"`
}

// String returns the name, else the id.
func (h HostIdentity) String() string {
	if h.Name != "" {
		return h.Name
	}
	return h.ID
}
