package room

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/policy"
)

// A refusal names the moves, in words and in JSON, together with what would fit.
func TestAdvise(t *testing.T) {
	h := machine(t, two)
	h.MoverBytesPerSecond = gib / 2
	mustAdd(t, h, vm{name: "a", vcpus: 2, memory: 3 * gib, on: on(0)})
	mustAdd(t, h, vm{name: "c", vcpus: 2, memory: 3 * gib, on: on(1), touched: 0.5})
	s := vm{name: "new", vcpus: 2, memory: 6 * gib, spec: oneNode}.normal(t)
	_, _, refused := place.Place(place.Request{Host: h, Spec: s})
	err := Advise(Request{Host: h, Spec: s}, refused)
	var noFit *place.NoFitError
	if !errors.As(err, &noFit) {
		t.Fatalf("%v is no refusal of placing", err)
	}
	const line = "move c to node 0: 1.5 GiB, about 3 s"
	if text := err.Error(); !strings.Contains(text, "make room: "+line) || !strings.Contains(text, "would fit with: ") ||
		strings.Contains(text, "\n") {
		t.Errorf("%q", text)
	}
	var refusal *RefusalError
	if !errors.As(err, &refusal) || !strings.HasSuffix(refusal.Text(), "make room:\n  "+line+"\n"+makes) {
		t.Errorf("%q", refusal.Text())
	}
	data, err := json.Marshal(refusal)
	if err != nil {
		t.Fatal(err)
	}
	var read struct {
		Guest    string           `json:"guest"`
		Nodes    []place.Shortage `json:"nodes"`
		MakeRoom Plan             `json:"make_room"`
	}
	if err := json.Unmarshal(data, &read); err != nil || read.Guest != "new" || len(read.Nodes) != 2 ||
		len(read.MakeRoom.Moves) != 1 || !read.MakeRoom.Proven {
		t.Errorf("%s: %v", data, err)
	}
}

func TestAdvise_SaysThatTheHostIsTooSmall(t *testing.T) {
	h := machine(t, two)
	s := vm{name: "new", vcpus: 2, memory: 20 * gib}.normal(t)
	_, _, refused := place.Place(place.Request{Host: h, Spec: s, Policy: policy.Policy{}})
	var refusal *RefusalError
	if err := Advise(Request{Host: h, Spec: s}, refused); !errors.As(err, &refusal) {
		t.Fatal(err)
	}
	if !strings.Contains(refusal.Text(), "make room:\n  the host is too small") ||
		refusal.Error() != refused.Error() {
		t.Errorf("%q\n%q", refusal.Text(), refusal.Error())
	}
	other := errors.New("other")
	if err := Advise(Request{Host: h, Spec: s}, other); !errors.Is(err, other) {
		t.Error(err)
	}
}
