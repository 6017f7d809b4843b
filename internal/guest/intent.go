package guest

// Intent is what a guest asked for and was given, as it is kept with the guest.
type Intent struct {
	Spec      Spec      `json:"spec"`
	Placement Placement `json:"placement"`
	// Adopted says that others made the guest, and we bound it later.
	Adopted bool `json:"adopted,omitempty"`
}
