package daemon

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/history"
	"github.com/numavisor/numavisor/internal/topology"
)

// Series is the history of "guest" NAME or "node" ID, as far as it is kept.
func (d *Daemon) Series(ctx context.Context, kind, name string) (r history.Series, err error) {
	err = d.order(ctx, func(s *state) error {
		switch kind {
		case "guest":
			r = s.history.Guest(name)
		case "node":
			id, err := strconv.Atoi(name)
			if err != nil {
				return &hostapi.Error{Status: http.StatusBadRequest, Err: fmt.Errorf("node %q is not a number", name)}
			}
			r = s.history.Node(topology.NodeID(id))
		default:
			return unknown("series of a %q: there are those of a guest and of a node", kind)
		}
		if len(r.Times) == 0 {
			return unknown("nothing is known of %s %s", kind, name)
		}
		return nil
	})
	return r, err
}
