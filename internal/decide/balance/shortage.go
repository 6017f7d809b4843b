package balance

import (
	"fmt"
	"slices"
	"strings"
)

// shortage says what the nodes lack if the model does not allow these changes.
func (m *model) shortage(group []change) string {
	touched, peak := slices.Clone(m.touched(group)), 0.0
	before := make([]usage, len(touched))
	for k, i := range touched {
		before[k] = m.usage[i]
		peak = max(peak, m.use(i))
	}
	was := m.inverse(group)
	m.apply(group...)
	defer m.apply(was...)
	var all []string
	for k, i := range touched {
		if m.allowed(i, &before[k], peak) {
			continue
		}
		a, id := &m.usage[i], m.nodes[i].id
		lack := fmt.Sprintf("the CPUs of node %d would be busier than max_node_cpu allows", id)
		switch {
		case m.excess(i, a) > max(0, m.excess(i, &before[k]))+slack:
			lack = fmt.Sprintf("node %d has too few CPUs", id)
		case !m.memoryAllowed(i, &before[k]):
			lack = fmt.Sprintf("node %d has too little memory", id)
			for s := 1; s < len(m.sizes); s++ {
				if a.left[s] < min(0, before[k].left[s])-1 {
					lack = fmt.Sprintf("node %d has too few free huge pages of %v", id, m.sizes[s])
				}
			}
		}
		all = append(all, lack)
	}
	return strings.Join(all, ", ")
}
