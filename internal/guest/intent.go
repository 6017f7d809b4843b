package guest

// Intent is what a guest asked for and was given, as it is kept with the guest.
type Intent struct {
	Spec      Spec      `json:"spec"`
	Placement Placement `json:"placement"`
}
