package top

// helpLines explain the keys and the columns.
func helpLines() []string {
	return []string{
		headStyle.Render("Keys"),
		"up, down, j, k       select a row; page up and down, home, end",
		"tab, left, right     go to another pane: nodes, VMs, moves, advice, alarms",
		"s, S                 sort by the next column; the other way round",
		"/                    show only rows that contain a text; esc shows all again",
		"enter                details of the selected row; esc goes back",
		"a                    accept the recommended move of the selected row",
		"c                    cancel the move of the selected row",
		"p                    pause all moves of this host; resume",
		"q                    quit; the daemon and the VMs keep running",
		"",
		headStyle.Render("Nodes"),
		"CPU       CPUs in use by any program, of those online",
		"WAIT      runnable threads that wait for a CPU",
		"REMOTE    share of the accesses by this node's CPUs that leave the node",
		"TRAFFIC   to this node's memory; - if no source measures it",
		"",
		headStyle.Render("VMs"),
		"CPU       CPUs that it uses or waits for;  WAIT  the share that it waits for",
		"LOCAL     share of its memory on the nodes of the vCPUs that use it",
		"REMOTE    share of its accesses that leave the node, and the source: mbm",
		"          (resctrl), pmu, lab (the lab's counter), est (estimate by placement)",
		"STATE     moving, degraded (for how long), drift (differs from its placement),",
		"          advice, blocked (enter shows why), cooldown (moved recently)",
		"!         it has an active alarm",
	}
}
