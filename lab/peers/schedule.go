package peers

// Next returns which manager runs next. Managers take turns until each has the
// required number of valid runs (repeats), so that other load on the machine
// affects all alike. Failed runs stay among the runs; a manager gets at most
// repeats further tries. ok is false if no manager is left.
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
