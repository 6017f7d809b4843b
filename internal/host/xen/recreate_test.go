package xen

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// toNode1 asks for node 1, with all means.
func toNode1() operate.BindRequest {
	return operate.BindRequest{Name: "vm", Recreate: true, Change: toNode(1)}
}

func toNode(n topology.NodeID) func(guest.Spec) (guest.Spec, error) {
	return func(s guest.Spec) (guest.Spec, error) {
		s.Limits.Nodes = topology.SetOf(n)
		return s, nil
	}
}

// A VM is made again on another node: its memory is there, its UUID and its intent stay, and the next bind has nothing
// to do.
func TestBind_Recreates(t *testing.T) {
	h, s := joined(t)
	h.Policy = policy.Policy{Movers: policy.Movers{Recreate: policy.AnswerOperator}}
	before := s.add("vm", 0, "0-3", 2)
	announced := 0
	r := toNode1()
	r.Announce = func(plan.Steps) {
		if announced++; s.migrated != "" {
			t.Error("the price was announced after the migration")
		}
	}
	s.before = func(line string) {
		if strings.HasPrefix(line, "xl migrate") {
			time.Sleep(10 * time.Millisecond)
		}
	}
	b, err := h.Bind(t.Context(), r)
	if err != nil || !b.Complete() {
		t.Fatalf("error %v, shortfalls %v", err, b.Shortfalls())
	}
	if price := b.Plan.Steps[1].Price; announced != 1 || price == nil || price.Pause <= 0 || price.Most < 2*price.Pause ||
		price.RateFrom != "not measured here" {
		t.Errorf("announced %d times, price %v; want one before it is done", announced, price)
	}
	now := s.domains[2]
	if s.domains[1] != nil || now == nil || now.node != 1 || now.uuid != before.uuid || now.hard[0].String() != "4-7" {
		t.Fatalf("the VM is %+v, want domain 2 on node 1 with the UUID %s", now, before.uuid)
	}
	if again, err := h.Bind(t.Context(), operate.BindRequest{Name: "vm"}); err != nil || len(again.Plan.Steps) != 0 {
		t.Errorf("the next bind has the steps %v, error %v; want none", again.Plan.Steps, err)
	}
	back := toNode1()
	back.Change, back.DryRun = toNode(0), true
	b, err = h.Bind(t.Context(), back)
	if err != nil {
		t.Fatal(err)
	}
	if price := b.Plan.Steps[1].Price; price == nil || price.RateFrom != "measured here" || price.Least < 10*time.Millisecond {
		t.Errorf("the next price is %v, want one by the first re-creation", price)
	}
}

// Without the policy, with devices or virtual nodes, without room, or with a copy that was left, nothing is changed,
// and the reason is named.
func TestBind_RefusesToRecreate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(h *operate.Host, s *simulated)
		config string // additions to its configuration, in JSON
		says   string
	}{
		"the policy": {change: func(h *operate.Host, _ *simulated) { h.Policy = policy.Policy{} },
			says: "movers.recreate"},
		"a device": {config: `"pcidevs": [{"bus": 1}]`, says: "0000:01:00.0"},
		"virtual nodes": {config: `"b_info": {"vnuma_nodes": [{"memkb": 524288, "vcpus": [0,1]}]}`,
			says: "virtual NUMA nodes"},
		"no room": {change: func(h *operate.Host, s *simulated) {
			k := h.Sources.Kernel.(dom0)
			k.topo.Nodes = slices.Clone(k.topo.Nodes)
			k.topo.Nodes[1].Free = topology.GiB / 4
			h.Sources.Kernel = k
		}, says: "node 1"},
		"a disk": {config: `"disks": [{"vdev": "xvda"}]`, says: "disks"},
		"a copy": {change: func(_ *operate.Host, s *simulated) { s.add("vm--incoming", 1, "4-7", 2) },
			says: "xl destroy"},
	} {
		t.Run(name, func(t *testing.T) {
			h, s := joined(t)
			h.Policy = policy.Policy{Movers: policy.Movers{Recreate: policy.AnswerOperator}}
			s.add("vm", 0, "0-3", 2).config = c.config
			if c.change != nil {
				c.change(h, s)
			}
			b, err := h.Bind(t.Context(), toNode1())
			said := strings.Join(b.Shortfalls(), "\n")
			if err != nil {
				said += err.Error()
			}
			if !strings.Contains(said, c.says) {
				t.Errorf("error %v, shortfalls %v; want %q", err, b.Shortfalls(), c.says)
			}
			if s.migrated != "" || s.domains[1] == nil || s.domains[1].node != 0 {
				t.Errorf("it was migrated by %q", s.migrated)
			}
		})
	}
}

// A migration that fails leaves the VM as it was and no copy of it.
func TestBind_RecreationFails(t *testing.T) {
	h, s := joined(t)
	h.Policy = policy.Policy{Movers: policy.Movers{Recreate: policy.AnswerOperator}}
	s.add("vm", 0, "0-3", 2)
	s.before = func(line string) {
		if strings.HasPrefix(line, "xl migrate") {
			s.before = nil
			s.add("vm--incoming", 1, "4-7", 2)
			s.failing["xl migrate"] = &FailedError{Command: "xl migrate", Status: 1, Said: "Migration failed"}
		}
	}
	_, err := h.Bind(t.Context(), toNode1())
	if !errors.Is(err, guest.ErrRefused) || !strings.Contains(err.Error(), "Migration failed") {
		t.Errorf("error is %v", err)
	}
	if len(s.domains) != 2 || s.domains[1] == nil || s.domains[1].hard[0].String() != "0-3" {
		t.Errorf("there are %d domains, want dom0 and the VM as it was", len(s.domains))
	}
}

// The configuration computed from a captured host makes the same VM: what Numavisor does not know is refused.
func TestComputeConfig(t *testing.T) {
	var all []json.RawMessage
	if err := json.Unmarshal(captured(t, "list-l"), &all); err != nil {
		t.Fatal(err)
	}
	text, err := computeConfig([]byte("[" + string(all[2]) + "]"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := ParseConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"name": "g2", "type": "pvh", "vcpus": "2", "maxvcpus": "2", "memory": "192",
		"maxmem": "192", "kernel": "/lab/vmlinuz", "on_reboot": "restart", "on_soft_reset": "soft-reset",
		"cmdline": "console=hvc0 quiet panic=-1 transparent_hugepage=never tsc=reliable", "cpu_weight": "256"} {
		if got, _ := c.get(key); got.text != want {
			t.Errorf("%s is %q, want %q", key, got.text, want)
		}
	}
	for _, key := range []string{"cpus", "cpus_soft", "uuid"} {
		if v, ok := c.get(key); ok {
			t.Errorf("it has %s = %q, which the placement gives", key, v.text)
		}
	}
	// A domain that has arrived by a migration.
	text, err = computeConfig([]byte(`[{"config": {"b_info": {"arch_x86": {
		"msr_relaxed": "True"
	}}}}]`))
	if err != nil || string(text) != "msr_relaxed = 1\n" {
		t.Errorf("%q, %v", text, err)
	}
	for _, unknown := range []string{`"nics": []`, `"c_info": {"type": "hvm\n"}`, `"b_info": {"type.hvm": {}}`,
		`"b_info": {"avail_vcpus": [1]}`, `"b_info": {"target_memkb": 1000}`, `"b_info": {"kernel": "a\"b"}`,
		`"b_info": {"sched_params": {"period": 10}}`, `"b_info": {"arch_x86": {"other": "True"}}`} {
		if text, err := computeConfig([]byte(`[{"config": {` + unknown + `}}]`)); err == nil {
			t.Errorf("%s gives %q, want a refusal", unknown, text)
		}
	}
}

// An operator's configuration is refused if the VM would be another one.
func TestCheckDefinition(t *testing.T) {
	for text, says := range map[string]string{
		"name = 'vm'\n": "", "name = 'other'\n": "other", "name = 'vm'\nuuid = 'x'\n": "uuid",
		"name = 'vm'\nvnuma = [[ 'pnode=0' ]]\n": "vnuma", "name = 'vm'\npci = [ '01:00.0' ]\n": "pci",
		"name = 'vm'\nvif = [ 'bridge=br0' ]\n":                       "mac",
		"name = 'vm'\nvif = [ 'MAC=00:16:3e:00:00:01,bridge=br0' ]\n": "",
	} {
		err := checkDefinition("vm", []byte(text))
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%q: error %v, want %q", text, err, says)
		}
	}
}

var _ apply.Recreator = (*Driver)(nil)
