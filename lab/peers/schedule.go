package peers

// Next returns which manager is to run next: managers take turns, so that what
// else the machine does meets all alike, until each has so many valid runs.
// Failed runs stay among the runs; a manager gets at most as many tries again
// as it shall have valid runs. None is left if ok is false.
func Next(runs []Run, managers []Manager, repeats int) (next Manager, ok bool) {
	tries, valid := map[string]int{}, map[string]int{}
	for _, r := range runs {
		tries[r.Manager]++
		if r.Failed == "" {
			valid[r.Manager]++
		}
	}
	for _, m := range managers {
		if valid[m.Name] >= repeats || tries[m.Name] >= 2*repeats {
			continue
		}
		if !ok || tries[m.Name] < tries[next.Name] {
			next, ok = m, true
		}
	}
	return next, ok
}
