package fleetofone_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/fleetofone"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// A VM's life over the socket: it is on the host as the answers say, bound and verified, with the reasons.
func TestVM_LifeOverTheSocket(t *testing.T) {
	s := serve(t, nil)
	ctx := t.Context()
	vm := s.create("web1")
	if vm.Host != host || vm.By != "ann (uid 1000)" || vm.Created.IsZero() || vm.Placement.Nodes.IsEmpty() ||
		vm.Why == nil || vm.Why.Text == "" || len(vm.Why.Terms) == 0 || vm.Why.Summary == "" {
		t.Errorf("created: %s", text(vm))
	}
	s.CheckInPlace(t, "web1")
	p, err := s.client.Placement(ctx, "web1")
	if err != nil || p.Host != host || !p.Placement.Nodes.Equal(vm.Placement.Nodes) || p.Why.Text != vm.Why.Text {
		t.Errorf("placement: %s: %v", text(p), err)
	}
	for _, step := range []struct {
		what string
		do   func() (fleetapi.VM, error)
		want fleetapi.VMState
	}{
		{"stop", func() (fleetapi.VM, error) { return s.client.StopVM(ctx, "web1", fleetapi.Change{}) }, fleetapi.VMStopped},
		{"stop again", func() (fleetapi.VM, error) { return s.client.StopVM(ctx, "web1", fleetapi.Change{}) }, fleetapi.VMStopped},
		{"start", func() (fleetapi.VM, error) { return s.client.StartVM(ctx, "web1", fleetapi.Change{}) }, fleetapi.VMRunning},
		{"bind", func() (fleetapi.VM, error) { return s.client.BindVM(ctx, "web1", fleetapi.Change{}) }, fleetapi.VMRunning},
		{"get", func() (fleetapi.VM, error) { return s.client.VM(ctx, "web1") }, fleetapi.VMRunning},
		{"delete", func() (fleetapi.VM, error) { return s.client.DeleteVM(ctx, "web1", fleetapi.Change{}) }, fleetapi.VMDeleting},
	} {
		if vm, err := step.do(); err != nil || vm.State != step.want {
			t.Fatalf("%s: %s: %v", step.what, text(vm), err)
		}
	}
	if _, err := s.client.VM(ctx, "web1"); problem(err) != fleetapi.ProblemNotFound {
		t.Errorf("after its deletion: %v", err)
	}
	if _, exists := s.Guest("web1"); exists {
		t.Error("it still exists")
	}
	s.CheckSettled(t)
	history, err := s.client.History(ctx, "web1", 10, "")
	if err != nil || len(history.Entries) < 4 || history.Entries[0].Operation != "delete-vm" ||
		history.Entries[0].By != "ann (uid 1000)" {
		t.Errorf("history: %s: %v", text(history), err)
	}
}

// A VM that does not run has another size at its next start; what does not fit changes nothing.
func TestResize_AVMThatDoesNotRun(t *testing.T) {
	s := serve(t, nil)
	ctx := t.Context()
	before := s.create("web1")
	if _, err := s.client.StopVM(ctx, "web1", fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	small := fleetapi.VMResize{VCPUs: before.Spec.VCPUs - 1, Memory: before.Spec.Memory / 2}
	for _, dry := range []bool{true, false} {
		vm, err := s.client.ResizeVM(ctx, "web1", small, fleetapi.Change{DryRun: dry})
		if err != nil || vm.Spec.VCPUs != small.VCPUs || vm.Spec.Memory != before.Spec.Memory/2 ||
			len(vm.Placement.VCPUs) != small.VCPUs || vm.State != fleetapi.VMStopped {
			t.Fatalf("dry run %v: %s: %v", dry, text(vm), err)
		}
		if now, err := s.client.VM(ctx, "web1"); err != nil ||
			(now.Spec.VCPUs == small.VCPUs) == dry {
			t.Errorf("dry run %v: the VM is %s: %v", dry, text(now), err)
		}
	}
	huge := fleetapi.VMResize{Memory: 1 << 40}
	if _, err := s.client.ResizeVM(ctx, "web1", huge, fleetapi.Change{}); problem(err) != fleetapi.ProblemNoHost {
		t.Errorf("1 TiB: %v", err)
	}
	vm, err := s.client.StartVM(ctx, "web1", fleetapi.Change{})
	if err != nil || vm.State != fleetapi.VMRunning || vm.Spec.VCPUs != small.VCPUs {
		t.Fatalf("start: %s: %v", text(vm), err)
	}
	s.CheckInPlace(t, "web1")
	if _, err := s.client.ResizeVM(ctx, "web1", small, fleetapi.Change{}); problem(err) != fleetapi.ProblemConflict {
		t.Errorf("while it runs: %v", err)
	}
	history, err := s.client.History(ctx, "web1", 10, "")
	if err != nil || len(history.Entries) < 3 || history.Entries[1].Operation != "resize-vm" {
		t.Errorf("history: %s: %v", text(history), err)
	}
	s.CheckSettled(t)
}

// Commands on the host and requests see the same VMs, and the same claims.
func TestVMs_OfCommandsAreSeen(t *testing.T) {
	s := serve(t, nil)
	if _, err := s.Create(operatetest.Spec(t, guest.Spec{Name: "mine", VCPUs: 1, Memory: 32 * mib})); err != nil {
		t.Fatal(err)
	}
	vm, err := s.client.VM(t.Context(), "mine")
	if err != nil || vm.State != fleetapi.VMRunning || vm.Adopted || vm.Why == nil || vm.Why.Text == "" {
		t.Errorf("%s: %v", text(vm), err)
	}
	if _, err := s.client.CreateVM(t.Context(), vmOf("mine"), fleetapi.Change{}); problem(err) != fleetapi.ProblemExists {
		t.Errorf("created twice: %v", err)
	}
	if err := s.Joined.Delete(t.Context(), operate.DeleteRequest{Name: "mine"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.VM(t.Context(), "mine"); problem(err) != fleetapi.ProblemNotFound {
		t.Errorf("deleted by a command: %v", err)
	}
}

// A VM that another process creates or changes is shown as one that is worked on, and is not changed meanwhile.
func TestVMs_BeingChangedByOthers(t *testing.T) {
	s := serve(t, nil)
	ctx := t.Context()
	s.create("web1")
	begin, end := make(chan struct{}), make(chan struct{})
	s.Inject(fake.Fault{Before: fake.NthOf("Start", 1, func() error { close(begin); <-end; return nil })})
	created := make(chan error, 1)
	go func() {
		_, err := s.Create(operatetest.Spec(t, guest.Spec{Name: "cli", VCPUs: 1, Memory: 32 * mib}))
		created <- err
	}()
	<-begin
	vm, err := s.client.VM(ctx, "cli")
	if err != nil || vm.State != fleetapi.VMWorking || vm.Spec.VCPUs != 1 || vm.Placement.Nodes.IsEmpty() {
		t.Errorf("%s: %v", text(vm), err)
	}
	if _, err := s.client.CreateVM(ctx, vmOf("cli"), fleetapi.Change{}); problem(err) != fleetapi.ProblemExists {
		t.Errorf("created meanwhile: %v", err)
	}
	close(end)
	if err := <-created; err != nil {
		t.Fatal(err)
	}
}

// A change that takes longer than its request waits goes on, and is shown; nothing else may change the VM meanwhile.
func TestChange_GoesOnAfterItsRequest(t *testing.T) {
	s := serve(t, func(o *fleetofone.Options) { o.Patience = time.Millisecond })
	ctx := t.Context()
	begin, end := make(chan struct{}), make(chan struct{})
	s.Inject(fake.Fault{Before: fake.NthOf("Start", 1, func() error { close(begin); <-end; return nil })})
	vm, err := s.client.CreateVM(ctx, vmOf("web1"), fleetapi.Change{Key: "k"})
	if err != nil || vm.State != fleetapi.VMWorking || vm.Spec.VCPUs != 2 {
		t.Fatalf("%s: %v", text(vm), err)
	}
	<-begin
	if again, err := s.client.CreateVM(ctx, vmOf("web1"), fleetapi.Change{Key: "k"}); err != nil ||
		again.State != fleetapi.VMWorking {
		t.Errorf("repeated meanwhile: %s: %v", text(again), err)
	}
	for what, do := range map[string]func() (fleetapi.VM, error){
		"create": func() (fleetapi.VM, error) { return s.client.CreateVM(ctx, vmOf("web1"), fleetapi.Change{}) },
		"stop":   func() (fleetapi.VM, error) { return s.client.StopVM(ctx, "web1", fleetapi.Change{}) },
	} {
		if _, err := do(); problem(err) != fleetapi.ProblemConflict {
			t.Errorf("%s meanwhile: %v", what, err)
		}
	}
	close(end)
	s.eventually("web1 runs", func() bool {
		vm, err := s.client.VM(ctx, "web1")
		return err == nil && vm.State == fleetapi.VMRunning
	})
	s.CheckSettled(t)
}

// A change that is refused after its request was answered is shown as the reason why nothing happened.
func TestChange_RefusedAfterItsRequest(t *testing.T) {
	s := serve(t, nil)
	ctx := t.Context()
	vm := s.create("web1")
	s.stop()
	s.options.Patience = time.Millisecond
	s.start()
	end := make(chan struct{})
	s.Inject(fake.Fault{Before: fake.NthOf("Guests", 1, func() error { <-end; return nil })})
	stale := fleetapi.Change{Revision: vm.Revision + 2}
	if answer, err := s.client.StopVM(ctx, "web1", stale); err != nil || answer.State != fleetapi.VMWorking {
		t.Errorf("%s: %v", text(answer), err)
	}
	close(end)
	s.eventually("it says why it runs", func() bool {
		vm, err := s.client.VM(ctx, "web1")
		return err == nil && vm.State == fleetapi.VMRunning && strings.Contains(vm.Status.Message, "it was not stopped: ")
	})
	if vm, err := s.client.StopVM(ctx, "web1", fleetapi.Change{}); err != nil || strings.Contains(text(vm), "was not stopped") {
		t.Errorf("stopped then: %s: %v", text(vm), err)
	}
}

// A daemon that stops ends the changes in progress, and leaves nothing half done.
func TestWait_EndsChanges(t *testing.T) {
	s := serve(t, func(o *fleetofone.Options) { o.Patience = time.Millisecond })
	begin := make(chan struct{})
	s.Inject(fake.Fault{Before: fake.NthOf("Start", 1, func() error {
		close(begin)
		time.Sleep(20 * time.Millisecond)
		return errors.New("the connection to libvirt was lost")
	})})
	if _, err := s.client.CreateVM(t.Context(), vmOf("web1"), fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	<-begin
	s.stop()
	s.CheckSettled(t)
	if _, exists := s.Guest("web1"); exists {
		t.Error("it exists")
	}
}

// What a host refuses to do is a problem that says why, and is remembered for those who ask later.
func TestCreate_FailsOnTheHost(t *testing.T) {
	s := serve(t, nil)
	s.Inject(fake.Fault{Before: fake.NthOf("Start", 1, func() error { return operatetest.ErrLost })})
	_, err := s.client.CreateVM(t.Context(), vmOf("web1"), fleetapi.Change{Key: "k"})
	if problem(err) != fleetapi.ProblemFailed || !strings.Contains(err.Error(), operatetest.ErrLost.Error()) {
		t.Fatal(err)
	}
	_, err = s.client.VM(t.Context(), "web1")
	if problem(err) != fleetapi.ProblemNotFound || !strings.Contains(err.Error(), operatetest.ErrLost.Error()) {
		t.Errorf("asked later: %v", err)
	}
	s.CheckSettled(t)
	if vm, err := s.client.CreateVM(t.Context(), vmOf("web1"), fleetapi.Change{Key: "k"}); err != nil ||
		vm.State != fleetapi.VMRunning {
		t.Errorf("the same request again, after it failed: %s: %v", text(vm), err)
	}
}

// The same request with the same key makes one VM, also after a restart of the daemon.
func TestCreate_Repeated(t *testing.T) {
	s := serve(t, nil)
	ctx := t.Context()
	first, err := s.client.CreateVM(ctx, vmOf("web1"), fleetapi.Change{Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		again, err := s.client.CreateVM(ctx, vmOf("web1"), fleetapi.Change{Key: "k"})
		if err != nil || again.Name != "web1" || again.Revision != first.Revision {
			t.Errorf("%s: %v", text(again), err)
		}
		if _, err := s.client.CreateVM(ctx, vmOf("web2"), fleetapi.Change{Key: "k"}); problem(err) != fleetapi.ProblemInvalid {
			t.Errorf("the key of another request: %v", err)
		}
		s.stop()
		s.start()
	}
	if vms, err := s.client.VMs(ctx, fleetapi.Filter{}); err != nil || len(vms) != 1 {
		t.Errorf("%d VMs: %v", len(vms), err)
	}
}

// Of many requests for one name, one creates the VM.
func TestCreate_AtTheSameTime(t *testing.T) {
	s := serve(t, nil)
	var all sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for range 8 {
		all.Go(func() {
			_, err := s.client.CreateVM(t.Context(), vmOf("web1"), fleetapi.Change{})
			mu.Lock()
			defer mu.Unlock()
			switch problem(err) {
			case fleetapi.ProblemConflict, fleetapi.ProblemExists:
			default:
				made++
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if made != 1 {
		t.Errorf("%d were created", made)
	}
	s.CheckSettled(t)
}

// A dry run says what would happen, and changes nothing.
func TestDryRun_ChangesNothing(t *testing.T) {
	s := serve(t, nil)
	ctx, dry := t.Context(), fleetapi.Change{DryRun: true}
	s.create("web1")
	s.MustAdd(t, operatetest.Kinds[0].Guest("other", 32*mib, []topology.NodeID{1}, operatetest.CPUs("4-7")))
	before, other := s.MustGuest(t, "web1"), s.MustGuest(t, "other")
	entries, err := s.Joined.Journal.Entries()
	if err != nil {
		t.Fatal(err)
	}
	vm, err := s.client.CreateVM(ctx, vmOf("web2"), dry)
	if err != nil || vm.Host != host || vm.Placement.Nodes.IsEmpty() || vm.Why.Text == "" || vm.Revision != 0 {
		t.Errorf("create: %s: %v", text(vm), err)
	}
	if vm, err := s.client.StopVM(ctx, "web1", dry); err != nil || vm.Run != fleet.Stopped {
		t.Errorf("stop: %s: %v", text(vm), err)
	}
	if vm, err := s.client.StartVM(ctx, "web1", dry); err != nil || vm.Run != fleet.Running {
		t.Errorf("start: %s: %v", text(vm), err)
	}
	if vm, err := s.client.BindVM(ctx, "web1", dry); err != nil || vm.Why == nil || vm.Placement.Nodes.IsEmpty() {
		t.Errorf("bind: %s: %v", text(vm), err)
	}
	if vm, err := s.client.AdoptVM(ctx, fleetapi.VMAdopt{Host: host, Name: "other"}, dry); err != nil ||
		vm.Placement.Nodes.IsEmpty() {
		t.Errorf("adopt: %s: %v", text(vm), err)
	}
	if vm, err := s.client.DeleteVM(ctx, "web1", dry); err != nil || vm.State != fleetapi.VMDeleting {
		t.Errorf("delete: %s: %v", text(vm), err)
	}
	if _, err := s.client.ResizeVM(ctx, "web1", fleetapi.VMResize{VCPUs: 1}, dry); problem(err) != fleetapi.ProblemConflict {
		t.Errorf("resize a VM that runs: %v", err)
	}
	s.CheckUnchanged(t, before)
	s.CheckUnchanged(t, other)
	if after, err := s.Joined.Journal.Entries(); err != nil || len(after) != len(entries) {
		t.Errorf("the journal has %d new entries: %v", len(after)-len(entries), err)
	}
}

// A change with If-Match is made to that revision only. Each answer has the revision as its entity tag.
func TestRevision_LimitsChanges(t *testing.T) {
	s := serve(t, nil)
	ctx := t.Context()
	vm := s.create("web1")
	_, _, header := s.ask("GET", "/v1/vms/web1", "")
	if got := header.Get("ETag"); got != fmt.Sprintf("%q", fmt.Sprint(vm.Revision)) {
		t.Errorf("ETag %s of revision %d", got, vm.Revision)
	}
	if vm.Revision <= 0 || vm.Revision >= 1<<53 {
		t.Errorf("revision %d", vm.Revision)
	}
	stale := fleetapi.Change{Revision: vm.Revision + 2}
	for what, do := range map[string]func() (fleetapi.VM, error){
		"start":  func() (fleetapi.VM, error) { return s.client.StartVM(ctx, "web1", stale) },
		"stop":   func() (fleetapi.VM, error) { return s.client.StopVM(ctx, "web1", stale) },
		"bind":   func() (fleetapi.VM, error) { return s.client.BindVM(ctx, "web1", stale) },
		"delete": func() (fleetapi.VM, error) { return s.client.DeleteVM(ctx, "web1", stale) },
	} {
		if _, err := do(); problem(err) != fleetapi.ProblemChanged {
			t.Errorf("%s of another revision: %v", what, err)
		}
	}
	stopped, err := s.client.StopVM(ctx, "web1", fleetapi.Change{Revision: vm.Revision})
	if err != nil || stopped.Revision == vm.Revision {
		t.Fatalf("stop: %s: %v", text(stopped), err)
	}
	if _, err := s.client.DeleteVM(ctx, "web1", fleetapi.Change{Revision: vm.Revision}); problem(err) != fleetapi.ProblemChanged {
		t.Errorf("delete of the revision before: %v", err)
	}
	if _, err := s.client.DeleteVM(ctx, "web1", fleetapi.Change{Revision: stopped.Revision}); err != nil {
		t.Error(err)
	}
}

// A VM of another program is adopted where its nodes are chosen, and is not deleted.
func TestAdopt_BindsAVMOfAnotherProgram(t *testing.T) {
	s := serve(t, nil)
	ctx := t.Context()
	s.MustAdd(t, operatetest.Kinds[0].Guest("other", 32*mib, []topology.NodeID{1}, operatetest.CPUs("4-7")))
	vm, err := s.client.VM(ctx, "other")
	if err != nil || vm.State != fleetapi.VMRunning || !vm.Placement.Nodes.IsEmpty() || vm.Status.Message == "" {
		t.Errorf("before: %s: %v", text(vm), err)
	}
	if _, err := s.client.DeleteVM(ctx, "other", fleetapi.Change{}); problem(err) != fleetapi.ProblemConflict {
		t.Errorf("deleted: %v", err)
	}
	for range 2 { // the second is a repetition
		vm, err = s.client.AdoptVM(ctx, fleetapi.VMAdopt{Host: host, Name: "other"}, fleetapi.Change{Key: "k"})
		if err != nil || !vm.Adopted || vm.Placement.Nodes.IsEmpty() {
			t.Fatalf("adopted: %s: %v", text(vm), err)
		}
	}
	s.CheckInPlace(t, "other")
	if _, err := s.client.AdoptVM(ctx, fleetapi.VMAdopt{Host: host, Name: "other"}, fleetapi.Change{}); problem(err) !=
		fleetapi.ProblemExists {
		t.Errorf("adopted twice: %v", err)
	}
}

// VMs of the fleet that the host has joined are the server's.
func TestFleet_VMsAreChangedByTheServer(t *testing.T) {
	s := serve(t, func(o *fleetofone.Options) { o.Fleet = func(vm string) bool { return vm == "theirs" } })
	ctx, how := t.Context(), fleetapi.Change{}
	s.daemon.status.Fleet = &status.Fleet{Server: "fleet.example.org:8443", Host: "host7"}
	if _, err := s.Create(operatetest.Spec(t, guest.Spec{Name: "theirs", VCPUs: 1, Memory: 32 * mib})); err != nil {
		t.Fatal(err)
	}
	before := s.MustGuest(t, "theirs")
	if vm, err := s.client.VM(ctx, "theirs"); err != nil || vm.Host != "host7" {
		t.Errorf("%s: %v", text(vm), err)
	}
	for _, dry := range []bool{false, true} {
		how.DryRun = dry
		for what, do := range map[string]func() (fleetapi.VM, error){
			"create": func() (fleetapi.VM, error) { return s.client.CreateVM(ctx, vmOf("theirs"), how) },
			"adopt": func() (fleetapi.VM, error) {
				return s.client.AdoptVM(ctx, fleetapi.VMAdopt{Host: "host7", Name: "theirs"}, how)
			},
			"start":  func() (fleetapi.VM, error) { return s.client.StartVM(ctx, "theirs", how) },
			"stop":   func() (fleetapi.VM, error) { return s.client.StopVM(ctx, "theirs", how) },
			"bind":   func() (fleetapi.VM, error) { return s.client.BindVM(ctx, "theirs", how) },
			"delete": func() (fleetapi.VM, error) { return s.client.DeleteVM(ctx, "theirs", how) },
		} {
			if _, err := do(); problem(err) != fleetapi.ProblemConflict ||
				!strings.Contains(err.Error(), "fleet.example.org:8443") {
				t.Errorf("%s, dry run %v: %v", what, dry, err)
			}
		}
	}
	s.CheckUnchanged(t, before)
	s.create("ours")
}

// Lists are filtered, and have pages.
func TestVMs_FilterAndPages(t *testing.T) {
	s := serve(t, nil)
	for _, name := range []string{"a", "b", "c"} {
		s.create(name)
	}
	if _, err := s.client.StopVM(t.Context(), "b", fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]string{
		"": "abc", "?state=stopped": "b", "?state=running": "ac", "?host=" + host: "abc", "?host=other": "",
		"?project=default": "abc", "?project=shop": "", "?label=tier": "", "?limit=2": "ab+", "?limit=2&cursor=b": "c",
		"?limit=1&state=running&cursor=a": "c", "?cursor=zzz": "",
	} {
		status, body, _ := s.ask("GET", "/v1/vms"+query, "")
		var page fleetapi.VMs
		if err := json.Unmarshal([]byte(body), &page); err != nil || status != http.StatusOK {
			t.Fatalf("%s: %d %s", query, status, body)
		}
		got := ""
		for i := range page.VMs {
			got += page.VMs[i].Name
		}
		if page.Next != "" {
			got += "+"
		}
		if got != want {
			t.Errorf("%q: %q, not %q", query, got, want)
		}
	}
	history, err := s.client.History(t.Context(), "", 2, "")
	if err != nil || len(history.Entries) != 2 || history.Next == "" || history.Entries[0].Operation != "stop-vm" {
		t.Fatalf("history: %s: %v", text(history), err)
	}
	rest, err := s.client.History(t.Context(), "", 10, history.Next)
	if err != nil || len(rest.Entries) != 2 || rest.Next != "" {
		t.Errorf("its second page: %s: %v", text(rest), err)
	}
}

// If a hypervisor cannot be asked, its VMs are not missing: the answer is that it is not known.
func TestVMs_OfAHiddenHypervisor(t *testing.T) {
	s := serve(t, nil)
	s.create("web1")
	s.Inject(fake.Fault{Before: func(c fake.Call) error {
		if c.Method == "Guests" {
			return errors.New("libvirtd does not answer")
		}
		return nil
	}})
	for _, path := range []string{"/v1/vms", "/v1/vms/web1"} {
		if status, body, _ := s.ask("GET", path, ""); status != http.StatusServiceUnavailable {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

// The host is shown with its nodes, its inventory and its alarms.
func TestHost_IsTheOnlyOne(t *testing.T) {
	s := serve(t, nil)
	ctx := t.Context()
	s.create("web1")
	hosts, err := s.client.Hosts(ctx)
	if err != nil || len(hosts) != 1 || hosts[0].Name != host || hosts[0].VMs != 1 || hosts[0].CPUs != 16 ||
		hosts[0].Nodes != 4 || hosts[0].Left == 0 || hosts[0].State != fleetapi.HostReachable {
		t.Errorf("%s: %v", text(hosts), err)
	}
	nodes, err := s.client.Nodes(ctx, host)
	var promised topology.Bytes
	for _, n := range nodes.Nodes {
		promised += n.Promised
	}
	if err != nil || len(nodes.Nodes) != 4 || promised != 64*mib {
		t.Errorf("%s: %v", text(nodes), err)
	}
	if inv, err := s.client.Inventory(ctx, host); err != nil || len(inv.Guests) != 1 ||
		inv.Version != inventory.Version {
		t.Errorf("%s: %v", text(inv), err)
	}
	if _, err := s.client.Host(ctx, "other"); problem(err) != fleetapi.ProblemNotFound {
		t.Error(err)
	}
	if me, err := s.client.Me(ctx); err != nil || me.Role != fleetapi.Admin || me.Name != "ann (uid 1000)" {
		t.Errorf("%+v: %v", me, err)
	}
}

// Events say what comes, changes and goes, by requests and by other programs.
func TestEvents_FollowTheHost(t *testing.T) {
	var roster sync.Map
	s := serve(t, func(o *fleetofone.Options) {
		o.Roster = func() string { v, _ := roster.Load("now"); now, _ := v.(string); return now }
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://daemon/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := s.http.Do(r) // it returns when the stream has begun
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan fleetapi.Event, 100)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer func() { _ = stream.Body.Close() }()
		for lines := bufio.NewScanner(stream.Body); lines.Scan(); {
			var e fleetapi.Event
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && json.Unmarshal([]byte(data), &e) == nil {
				events <- e
			}
		}
	})
	await := func(what string, is func(fleetapi.Event) bool) {
		t.Helper()
		for {
			select {
			case e := <-events:
				if is(e) {
					return
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("no event: %s", what)
			}
		}
	}
	s.create("web1")
	await("web1 runs", func(e fleetapi.Event) bool {
		return e.Kind == fleetapi.EventVM && e.Name == "web1" && e.VM != nil && e.VM.State == fleetapi.VMRunning
	})
	s.MustAdd(t, operatetest.Kinds[0].Guest("other", 32*mib, []topology.NodeID{1}, operatetest.CPUs("4-7")))
	roster.Store("now", "other")
	await("other comes", func(e fleetapi.Event) bool { return e.Name == "other" && e.VM != nil })
	if _, err := s.client.DeleteVM(t.Context(), "web1", fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	await("web1 is gone", func(e fleetapi.Event) bool { return e.Name == "web1" && e.Deleted })
	cancel()
	reader.Wait()
}
