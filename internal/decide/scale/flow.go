package scale

// graph is a network of flows with costs. Its vertices are numbers from 0.
type graph struct {
	edges []edge  // edge i and its reverse i^1
	out   [][]int // edges that leave a vertex
}

type edge struct{ from, to, left, cost int }

func newGraph(vertices int) *graph { return &graph{out: make([][]int, vertices)} }

// add adds an edge, and returns its number.
func (g *graph) add(from, to, capacity, cost int) int {
	i := len(g.edges)
	g.edges = append(g.edges, edge{from, to, capacity, cost}, edge{to, from, 0, -cost})
	g.out[from], g.out[to] = append(g.out[from], i), append(g.out[to], i+1)
	return i
}

// flow returns the flow over an edge.
func (g *graph) flow(i int) int { return g.edges[i^1].left }

// augment sends one unit from the source to the sink, on a way of least cost; false: there is none. Flows to which
// it is applied alone have the least cost of all flows of the same amount, so there are no circles of negative cost.
func (g *graph) augment() bool {
	const far = 1 << 40
	least, by := make([]int, len(g.out)), make([]int, len(g.out))
	queued := make([]bool, len(g.out))
	for v := range least {
		least[v], by[v] = far, -1
	}
	least[source] = 0
	for queue := []int{source}; len(queue) > 0; queue = queue[1:] {
		v := queue[0]
		queued[v] = false
		for _, i := range g.out[v] {
			e := &g.edges[i]
			if e.left == 0 || least[v]+e.cost >= least[e.to] {
				continue
			}
			least[e.to], by[e.to] = least[v]+e.cost, i
			if !queued[e.to] {
				queued[e.to] = true
				queue = append(queue, e.to)
			}
		}
	}
	if by[sink] < 0 {
		return false
	}
	for v := sink; v != source; v = g.edges[by[v]].from {
		g.edges[by[v]].left--
		g.edges[by[v]^1].left++
	}
	return true
}
