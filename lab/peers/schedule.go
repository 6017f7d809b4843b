package peers

import "time"

// Task is a run to be made.
type Task struct {
	Layout  Layout
	Manager Manager
	Round   int
}

// Tasks returns the runs that are left, in their order. Each layout gets the
// required number of rounds (valid runs of each manager). Within a round,
// layouts follow each other, and all managers of a layout, so that other load on
// the machine affects all alike. Failed runs stay among the runs and are
// repeated after all others; a manager gets at most as many further tries as
// rounds.
func Tasks(runs []Run, layouts []Layout, managers []Manager, rounds int) []Task {
	type pair struct{ layout, manager string }
	tries, valid := map[pair]int{}, map[pair]int{}
	for _, r := range runs {
		p := pair{r.Layout, r.Manager}
		tries[p]++
		if r.Failed == "" {
			valid[p]++
		}
	}
	var tasks []Task
	for try := range 2 * rounds {
		for _, l := range layouts {
			for _, m := range managers {
				if p := (pair{l.Name, m.Name}); tries[p] == try && valid[p] < rounds {
					tries[p]++
					valid[p]++ // if it does not fail
					tasks = append(tasks, Task{Layout: l, Manager: m, Round: valid[p]})
				}
			}
		}
	}
	return tasks
}

// usualOverhead is how long a run takes in addition to its own length, on two
// CPUs that do nothing else: boot, VMs, end.
const usualOverhead = 45 * time.Second

// Left estimates how long tasks take, by how long earlier runs took.
func Left(tasks []Task, runs []Run, layouts []Layout) time.Duration {
	length := map[string]float64{}
	for _, l := range layouts {
		length[l.Name] = float64(l.Seconds)
	}
	var more, n float64
	for _, r := range runs {
		if own, known := length[r.Layout]; known && r.Failed == "" {
			more, n = more+r.Took-own, n+1
		}
	}
	overhead := usualOverhead.Seconds()
	if n > 0 {
		overhead = more / n
	}
	sum := 0.0
	for _, t := range tasks {
		sum += float64(t.Layout.Seconds) + overhead
	}
	return time.Duration(sum * float64(time.Second)).Round(time.Second)
}
