package linux

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A tree as Documentation/arch/x86/resctrl.rst draws it.
func resctrlTree(t *testing.T) Root {
	t.Helper()
	return files(t, map[string]string{
		"sys/fs/resctrl/info/L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n",
		"sys/fs/resctrl/info/L3_MON/num_rmids":    "176\n",
		"sys/fs/resctrl/tasks":                    "1\n",
		"sys/fs/resctrl/mon_groups/other/tasks":   "",
		"sys/fs/resctrl/p1/mon_groups/m1/tasks":   "",
	})
}

func TestResctrl_AvailableOrGivesTheReason(t *testing.T) {
	if _, err := resctrlTree(t).Resctrl(); err != nil {
		t.Error(err)
	}
	if _, err := files(t, nil).Resctrl(); !errors.Is(err, ErrNoResctrl) {
		t.Error(err)
	}
	if _, err := files(t, map[string]string{"sys/fs/resctrl/info/L3/cbm_mask": "ff\n"}).Resctrl(); !errors.Is(
		err,
		ErrNoMBM,
	) {
		t.Error(err)
	}
	if _, err := files(t, map[string]string{"sys/fs/resctrl/info/L3_MON/mon_features": "llc_occupancy\n"}).Resctrl(); !errors.Is(
		err,
		ErrNoMBM,
	) {
		t.Error(err)
	}
}

func TestStaleMonitorsAreRemovedAndOthersNot(t *testing.T) {
	root := resctrlTree(t)
	stale := []string{root.path("sys/fs/resctrl/mon_groups/numavisor-12"),
		root.path("sys/fs/resctrl/p1/mon_groups/numavisor-13")}
	for _, folder := range stale {
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c, err := root.Resctrl()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.RemoveStale(); err != nil {
		t.Fatal(err)
	}
	for _, folder := range stale {
		if _, err := os.Stat(folder); !os.IsNotExist(err) {
			t.Errorf("%s still exists", folder)
		}
	}
	for _, folder := range []string{"mon_groups/other", "p1/mon_groups/m1"} {
		if _, err := os.Stat(root.path("sys/fs/resctrl", folder)); err != nil {
			t.Error(err)
		}
	}
}

func TestNoMoreMonitoringIDs(t *testing.T) {
	c, err := resctrlTree(t).Resctrl()
	if err != nil {
		t.Fatal(err)
	}
	for _, errno := range []error{unix.ENOSPC, unix.EBUSY} {
		c.Mkdir = func(string) error { return &os.PathError{Op: "mkdir", Err: errno} }
		if _, err := c.Monitor(c.root.NewFileCache(1), "", 7); !errors.Is(err, ErrNoRMID) {
			t.Errorf("%v: %v", errno, err)
		}
	}
}

func TestResctrlGroups(t *testing.T) {
	for text, want := range map[string][2]string{"res:/\nmon:\n": {"", ""}, "res:/\nmon:numavisor-7\n": {"",
		"numavisor-7"}, "res:p1\nmon:m1\n": {"p1", "m1"}} {
		if control, monitor, err := ParseResctrlGroups([]byte(text)); err != nil || control != want[0] ||
			monitor != want[1] {
			t.Errorf("%q: %q, %q, error %v", text, control, monitor, err)
		}
	}
	for _, text := range []string{"", "mon:x\n", "res:../..\nmon:\n"} {
		if _, _, err := ParseResctrlGroups([]byte(text)); err == nil {
			t.Errorf("%q passed", text)
		}
	}
}

func TestGroupsOfAThread(t *testing.T) {
	root := files(t, map[string]string{"proc/7/cpu_resctrl_groups": "res:p1\nmon:\n", "proc/8/comm": "x\n"})
	c := Resctrl{root: root}
	if control, _, err := c.GroupsOf(7); control != "p1" || err != nil {
		t.Errorf("%q, error %v", control, err)
	}
	if control, monitor, err := c.GroupsOf(8); control != "" || monitor != "" || err != nil {
		t.Errorf("a kernel without the file: %q, %q, error %v", control, monitor, err)
	}
	if _, _, err := c.GroupsOf(9); !Gone(err) {
		t.Errorf("a thread that does not exist: %v", err)
	}
}

func TestBandwidth(t *testing.T) {
	if n, err := ParseBandwidth([]byte("123456789012\n")); n != 123456789012 || err != nil {
		t.Errorf("%d, error %v", n, err)
	}
	for _, text := range []string{"Unavailable\n", "Error\n", "Unassigned\n"} {
		if _, err := ParseBandwidth([]byte(text)); !errors.Is(err, ErrNoBandwidth) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"", "-1\n", "x"} {
		if _, err := ParseBandwidth([]byte(text)); err == nil || errors.Is(err, ErrNoBandwidth) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
