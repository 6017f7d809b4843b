package diagnose

// topologyIncomplete: firmware tables are wrong or incomplete. (Gaps of the
// inventory are reported apart from the findings: they are no fault of the host.)
func topologyIncomplete(v *view) []Finding {
	if len(v.topology.Gaps) == 0 {
		return nil
	}
	return []Finding{{
		Severity: Info, Object: "host", Evidence: v.topology.Gaps,
		Effect: "placement treats missing data as unknown: devices without a node have no near node, and unknown " +
			"distances count as far",
		Fix: "correct the firmware's tables (SRAT, SLIT, PCI proximity); a firmware update often does",
	}}
}
