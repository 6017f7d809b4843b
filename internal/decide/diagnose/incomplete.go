package diagnose

// topologyIncomplete: what the firmware told wrong or not at all. (Gaps of the
// inventory go beside the findings: they are not the host's fault.)
func topologyIncomplete(v *view) []Finding {
	if len(v.topology.Gaps) == 0 {
		return nil
	}
	return []Finding{{
		Severity: Info, Object: "host", Evidence: v.topology.Gaps,
		Effect: "what is missing counts as unknown: devices without a node are near nothing, distances not told " +
			"are far",
		Fix: "have the firmware's tables corrected (SRAT, SLIT, PCI proximity); a firmware update often does",
	}}
}
