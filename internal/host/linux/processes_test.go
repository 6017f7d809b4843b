package linux

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/topology"
)

func statLine(name string) string {
	return "42 (" + name + ") S 1" + strings.Repeat(" 0", 17) + " 9876" + strings.Repeat(" 0", 16) + " 63 0 0\n"
}

func TestParseStat_NameMayContainAnything(t *testing.T) {
	for _, name := range []string{"qemu", "CPU 0/KVM", "a) R 1 (b", "((", ") )", "", "x\ny"} {
		got, err := ParseStat([]byte(statLine(name)))
		want := Stat{ID: 42, Name: name, State: 'S', StartTicks: 9876, LastCPU: 63}
		if err != nil || got != want {
			t.Errorf("%q: %+v, error %v", name, got, err)
		}
	}
}

func TestStatOfThisProcess(t *testing.T) {
	s, err := Live.Stat(os.Getpid())
	if err != nil || s.StartTicks == 0 {
		t.Fatalf("%+v, error %v", s, err)
	}
	if !Live.Alive(os.Getpid(), s.StartTicks) || Live.Alive(os.Getpid(), s.StartTicks+1) {
		t.Error("a process is alive with its own start time and with no other")
	}
}

func TestAnEndedProcessThatIsNotCollectedIsNotAlive(t *testing.T) {
	root := files(t, map[string]string{"proc/42/stat": strings.Replace(statLine("x"), ") S", ") Z", 1)})
	if root.Alive(42, 9876) {
		t.Error("a zombie is alive")
	}
}

func TestStatusOfCapturedGuest(t *testing.T) {
	root, pid := captured(t, "memfd")
	s, err := root.Status(pid)
	if err != nil || s.Process != pid || !s.Mems.Equal(nodes("1-2")) || !s.CPUs.Equal(cpus("0-7")) {
		t.Errorf("%+v, error %v", s, err)
	}
	for _, text := range []string{"", "Cpus_allowed_list:\t3-1\n", "VmPin:\t12 MB\nCpus_allowed_list:\t0\n",
		"Tgid:\tx\nCpus_allowed_list:\t0\n"} {
		if s, err := ParseStatus([]byte(text)); err == nil {
			t.Errorf("%q passed as %+v", text, s)
		}
	}
}

func TestCapturedProcess(t *testing.T) {
	root, pid := captured(t, "memfd")
	p, err := root.Process(pid)
	if err != nil || p.Exe != "/usr/bin/qemu-system-x86_64" || len(p.VFIO) != 0 {
		t.Errorf("%+v, error %v", p, err)
	}
	want := []OpenFile{{14, "/memfd:memory-backend-memfd (deleted)"}, {15, "/memfd:memory-backend-memfd (deleted)"}}
	if diff := cmp.Diff(want, p.Memfds); diff != "" {
		t.Error(diff)
	}
	for i, target := range []string{"/dev/vfio/vfio", "/dev/vfio/12", "/dev/vfio/devices/vfio0"} {
		if err := os.Symlink(target, root.proc(pid, "fd", strconv.Itoa(200+i))); err != nil {
			t.Fatal(err)
		}
	}
	if p, err = root.Process(pid); err != nil || len(p.VFIO) != 2 {
		t.Errorf("vfio groups and devices: %v, error %v", p.VFIO, err)
	}
}

func TestQEMUsFound(t *testing.T) {
	for name, want := range map[string]QEMU{
		"anon":  {Name: "anon", VCPUs: 2, Memory: 160 * mib, Libvirt: true},
		"plain": {Name: "plain", VCPUs: 2, Memory: 96 * mib},
		"quiet": {Name: "quiet", VCPUs: 2, Memory: 64 * mib},
	} {
		root, pid := captured(t, name)
		found, gaps, err := NewArguments(root).QEMUs()
		if err != nil || len(gaps) > 0 || len(found) != 1 {
			t.Fatalf("%s: %v, gaps %v, error %v", name, found, gaps, err)
		}
		want.PID = pid
		found[0].UUID = ""
		if diff := cmp.Diff(want, found[0]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestParseQEMU(t *testing.T) {
	for _, c := range []struct {
		args string
		want QEMU
		fail bool
	}{
		{"", QEMU{VCPUs: 1, Memory: 128 * mib}, false},
		{"-name a,,b,process=x -smp 4 -m 2G", QEMU{Name: "a,b", VCPUs: 4, Memory: 2 * topology.GiB}, false},
		{"--name guest=w -smp cpus=2,maxcpus=8 -m " +
			"size=1048576k,slots=4,maxmem=8G", QEMU{Name: "w", VCPUs: 2, Memory: topology.GiB}, false},
		{"-smp sockets=2,cores=4,threads=2 -m 512", QEMU{VCPUs: 16, Memory: 512 * mib}, false},
		{"-smp maxcpus=6", QEMU{VCPUs: 6, Memory: 128 * mib}, false},
		{"-smp 8,sockets=2 -m slots=2,maxmem=4G", QEMU{VCPUs: 8, Memory: 128 * mib}, false},
		{`-device vfio-pci,host=3b:00.0,id=a -device {"driver":"vfio-pci","host":"0001:05:00.1"} -device virtio-net,host=x`,
			QEMU{VCPUs: 1, Memory: 128 * mib, Devices: []string{"0000:3b:00.0", "0001:05:00.1"}}, false},
		{"-smp many -name n", QEMU{Name: "n", Memory: 128 * mib}, true},
		{"-m lots", QEMU{VCPUs: 1}, true},
		{"-smp 0", QEMU{Memory: 128 * mib}, true},
		{"-smp sockets=60000,cores=60000,threads=60000", QEMU{Memory: 128 * mib}, true},
	} {
		got, err := ParseQEMU(append([]string{"qemu-system-x86_64"}, strings.Fields(c.args)...))
		if (err != nil) != c.fail {
			t.Errorf("%s: error %v", c.args, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.args, diff)
		}
	}
}

func TestIsQEMU(t *testing.T) {
	for args, want := range map[string]bool{
		"/usr/bin/qemu-system-x86_64 -m 1": true, "/usr/libexec/qemu-kvm": true, "qemu-img create": false,
		"vim qemu-system-x86_64":                                     false,
		"/usr/bin/qemu-system-x86_64 -S -machine none,accel=kvm:tcg": false, "": false,
	} {
		if got := IsQEMU(strings.Fields(args)); got != want {
			t.Errorf("%q: %v", args, got)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte(statLine("CPU 0/KVM")))
	f.Add([]byte("1 (a) b) S"))
	f.Add([]byte(")("))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseStat(data)
		if err == nil && !bytes.Contains(data, []byte("("+s.Name+")")) {
			t.Errorf("name %q is not in %q", s.Name, data)
		}
	})
}

func FuzzParseStatus(f *testing.F) {
	f.Add([]byte("Name:\ta\nTgid:\t1\nVmPin:\t4 kB\nCpus_allowed_list:\t0-3,8\nMems_allowed_list:\t0\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, err := ParseStatus(data); err == nil && s.CPUs.IsEmpty() {
			t.Error("a thread that may run nowhere")
		}
	})
}

func FuzzParseQEMU(f *testing.F) {
	f.Add(
		[]byte(
			"qemu-kvm\x00-name\x00guest=a,,b\x00-smp\x002,sockets=1\x00-m\x001G\x00-device\x00{\"driver\":\"vfio-pci\",\"host\":\"1:2.3\"}\x00",
		),
	)
	f.Add([]byte("kvm\x00-smp\x00sockets=65536,cores=65536,dies=65536,threads=65536,books=65536\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		args := ParseCmdline(data)
		IsQEMU(args)
		q, err := ParseQEMU(args)
		if err == nil && (q.VCPUs < 1 || q.VCPUs > mostVCPUs) {
			t.Errorf("%d vCPUs from %q", q.VCPUs, data)
		}
	})
}

// /proc can be hidden while the process lives; that does not mean that the
// process has ended.
func TestUnreadOrGone_AsksTheKernel(t *testing.T) {
	missing := fmt.Errorf("open /proc/1/stat: %w", fs.ErrNotExist)
	if err := unreadOrGone(os.Getpid(), missing); Gone(err) || !errors.Is(err, ErrUnread) {
		t.Errorf("a running process without files: %v; want ErrUnread", err)
	}
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	if err := unreadOrGone(ended.Process.Pid, missing); !errors.Is(err, unix.ESRCH) || errors.Is(err, ErrUnread) {
		t.Errorf("an ended process: %v; want ESRCH", err)
	}
	if err := unreadOrGone(os.Getpid(), fs.ErrPermission); !errors.Is(err, ErrUnread) {
		t.Errorf("files that must not be read: %v; want ErrUnread", err)
	}
	if err := unreadOrGone(1, nil); err != nil {
		t.Errorf("no error became %v", err)
	}
}

// The kernel's own threads run no program. In a container, process 2 is any process.
func TestPrograms_LeavesKernelThreadsOut(t *testing.T) {
	tree := map[string]string{
		"proc/1/comm": "init\n", "proc/2/comm": "kthreadd\n", "proc/2/task/2/children": "3 14 ",
		"proc/3/comm": "rcu_gp\n", "proc/14/comm": "numad\n", "proc/20/comm": "bash\n",
	}
	for name, want := range map[string][]int{"kthreadd": {1, 20}, "sh": {1, 2, 3, 14, 20}} {
		tree["proc/2/comm"] = name + "\n"
		root := files(t, tree)
		got, err := root.programs()
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("process 2 is %s: %v, %v; want %v", name, got, err, want)
		}
		if runs, err := root.running("numad"); err != nil || runs != slices.Contains(want, 14) {
			t.Errorf("process 2 is %s: numad runs: %v, %v", name, runs, err)
		}
	}
}
