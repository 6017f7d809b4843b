package server

import "sync"

// wanted wakes the streams of the hosts whose desired state has changed.
type wanted struct {
	mu sync.Mutex
	by map[string]chan struct{}
}

func newWanted() *wanted { return &wanted{by: map[string]chan struct{}{}} }

// of returns a channel that the next change for a host closes.
func (w *wanted) of(host string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by[host] == nil {
		w.by[host] = make(chan struct{})
	}
	return w.by[host]
}

func (w *wanted) noteChange(_ *state, c change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for host := range c.desired {
		if changed := w.by[host]; changed != nil {
			close(changed)
			delete(w.by, host)
		}
	}
}
