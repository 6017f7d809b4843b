package top

// helpLines are the keys and what the columns mean.
func helpLines() []string {
	return []string{
		headStyle.Render("Keys"),
		"up, down, j, k       mark a row; page up and down, home, end",
		"tab, left, right     go to another pane: nodes, VMs, moves, advice, alarms",
		"s, S                 sort by the next column; the other way round",
		"/                    show only rows that hold a text; esc shows all again",
		"enter                all that is known of the marked row; esc goes back",
		"a                    make the advised move that is marked, or of the marked VM",
		"c                    end the move that is marked, or of the marked VM",
		"p                    pause all moves of this host; resume",
		"q                    quit; the daemon and the VMs do not notice",
		"",
		headStyle.Render("Nodes"),
		"CPU       CPUs in use, by whomever, of those online",
		"WAIT      threads that are runnable and wait for a CPU",
		"REMOTE    part of the accesses by this node's CPUs that leaves the node",
		"TRAFFIC   to this node's memory; - where nothing measures it",
		"",
		headStyle.Render("VMs"),
		"CPU       CPUs that it uses or waits for;  WAIT  the part that it waits for",
		"LOCAL     part of its memory on the nodes of the vCPUs that use it",
		"REMOTE    part of its accesses that leaves the node, and who measured it: mbm",
		"          (resctrl), pmu, lab (the lab's counter), est (an estimate by placement)",
		"STATE     moving, degraded (for how long), drift (not where it was placed), advice,",
		"          blocked (why: enter), cooldown (moved lately)",
		"!         an alarm lasts for it",
	}
}
