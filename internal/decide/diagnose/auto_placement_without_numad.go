package diagnose

// autoWithoutNumad: libvirt runs the program numad once for each start of a
// guest. This does not require the numad daemon to run.
func autoWithoutNumad(v *view) (found []Finding) {
	severity, evidence := Error, "numad is not installed"
	switch installed := v.host.Kernel.NumadInstalled; {
	case v.host.Kernel.NumadRunning || installed != nil && *installed:
		return nil
	case installed == nil:
		severity, evidence = Info, "numad is not running (processes); the inventory does not say whether it is "+
			"installed"
	}
	for i := range v.host.Guests { // includes shut-off guests, because their start fails
		g := &v.host.Guests[i]
		if !g.Config.AutoPlacement && (g.Config.NUMATune == nil || !g.Config.NUMATune.Auto) {
			continue
		}
		s := &subject{Guest: g}
		found = append(found, Finding{
			Severity: severity, Object: s.object(),
			Evidence: []string{"placement='auto' (configuration)", evidence},
			Effect: "libvirt asks numad for nodes at each start; without the program the VM does not start, and " +
				"nothing revises numad's advice while the VM runs",
			Fix:     "replace placement='auto' by explicit nodes in the configuration",
			Command: s.rewriteCommand(""),
		})
	}
	return found
}
