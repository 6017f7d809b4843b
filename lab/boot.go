package lab

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/u-root/u-root/pkg/cpio"
	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/topology"
)

// Options configure the lab to boot.
type Options struct {
	Shape Shape
	// Hypervisor runs the lab's VMs; default KVM. A Xen lab has no libvirt, is not
	// saved, and its commands run in Xen's first domain, dom0.
	Hypervisor Hypervisor
	// Libvirt starts libvirtd and waits until it answers.
	Libvirt bool
	// Files are programs that are first on the lab's PATH; by default
	// the running program, as "numavisor".
	Files map[string]string
	// Progress receives progress messages; nil: they are discarded.
	Progress func(format string, args ...any)
	// Share is a folder of this machine that the lab sees, and may write to,
	// as /lab/share; default none.
	Share string
	// QEMU is the emulator; default qemu-system-x86_64 from PATH, or a later one from the cache (findEmulator).
	QEMU string
	// Saved starts the lab from a saved lab in the user's cache folder, and makes
	// the saved lab first if it does not exist. libvirtd runs in it, and its root
	// holds the programs that tests need, not all programs of this machine. It has
	// no Share, and its shape has KVM.
	Saved bool
}

// Host is a booted lab.
type Host struct {
	Shape  Shape
	xen    *xenFiles // nil: a lab with KVM
	folder string    // its share is /lab inside
	ended  chan struct{}
	cause  error // why QEMU ended; valid after ended is closed
	stop   context.CancelFunc
	lock   *os.File

	agent   *agentLink
	monitor *monitor
	shared  bool // it may have written to a folder of this machine
}

const (
	bootTime     = 3 * time.Minute // some 15 s when the machine is idle
	xenBootTime  = 8 * time.Minute // Xen's first domain boots more slowly: some 40 s
	libvirtTime  = 2 * time.Minute
	powerOffTime = 20 * time.Second
	bootAttempts = 2 // where the emulator fails
	poll         = 30 * time.Millisecond
	folderPrefix = "numavisor-lab-"
)

// Boot starts a lab and returns when it takes commands; ctx bounds only that.
// The lab ends with Close and with this process, however that ends.
func Boot(ctx context.Context, o Options) (*Host, error) {
	o.Shape = o.Shape.withDefaults()
	if err := o.Shape.Validate(); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	if err := enoughMemory(o.Shape); err != nil {
		return nil, err
	}
	if o.Share != "" {
		if info, err := os.Stat(o.Share); err != nil || !info.IsDir() {
			return nil, errors.Join(fmt.Errorf("lab: %s cannot be shared with it: not a folder", o.Share), err)
		}
	}
	k, err := fetchKernel(ctx, o.Progress)
	if err != nil {
		return nil, err
	}
	if o.QEMU == "" {
		if o.QEMU, err = findEmulator(ctx, o.Hypervisor, o.Progress); err != nil {
			return nil, err
		}
	}
	x, err := o.xenParts(ctx)
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		var h *Host
		if o.Saved {
			h, err = restore(ctx, o, k)
		} else {
			h, err = bootFully(ctx, o, k, x)
		}
		if attempt == bootAttempts || !IsEmulatorFault(err) || ctx.Err() != nil {
			return h, err
		}
		o.Progress("the emulator failed, the lab boots again: %v", err)
	}
}

// bootFully starts a lab with the root of this machine.
func bootFully(ctx context.Context, o Options, k kernel, x *xenFiles) (*Host, error) {
	h, err := prepare(ctx, o, k, x)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	o.Progress("booting %s: %d nodes, %d CPUs, %v of memory", o.Shape.Name, len(o.Shape.Nodes), o.Shape.CPUs(),
		o.Shape.Memory())
	if err := h.start(ctx, o, k, machine{initrd: filepath.Join(h.folder, "initrd")}); err != nil {
		return nil, errors.Join(err, h.Kill())
	}
	if err := h.awaitUp(ctx); err != nil {
		return nil, errors.Join(err, h.Kill())
	}
	if err := h.enterWithin(ctx, bootTime); err != nil {
		return nil, errors.Join(err, h.Kill())
	}
	o.Progress("up after %.0f s", time.Since(begin).Seconds())
	if o.Libvirt {
		if err := h.startLibvirt(ctx, o.Progress); err != nil {
			return nil, errors.Join(err, h.Kill())
		}
	}
	return h, nil
}

// xenParts returns the parts of Xen that the options need; nil for a lab with KVM.
func (o *Options) xenParts(ctx context.Context) (*xenFiles, error) {
	switch {
	case o.Hypervisor == "" || o.Hypervisor == KVM:
		return nil, nil //nolint:nilnil // a lab without Xen
	case o.Hypervisor != Xen:
		return nil, fmt.Errorf("lab: hypervisor %q; allowed are kvm and xen", o.Hypervisor)
	case o.Libvirt || o.Saved:
		return nil, errors.New("lab: a Xen lab has no libvirt: its driver for Xen refuses the emulated CPU")
	}
	if err := o.Shape.supportsXen(); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	x, err := fetchXen(ctx, o.Progress)
	return &x, err
}

// enoughMemory refuses a lab that would make this machine swap or kill.
func enoughMemory(s Shape) error {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil // without the figure, QEMU itself reports a failure
	}
	for line := range strings.Lines(string(data)) {
		if kib, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(kib), " kB"), 10, 64)
			if have := topology.Bytes(n) * topology.KiB; err == nil && have < s.Memory() {
				return fmt.Errorf("lab %s needs %v of memory, this machine has %v available; choose a smaller shape",
					s.Name, s.Memory(), have)
			}
		}
	}
	return nil
}

// awaitUp waits until the agent and QEMU's monitor take commands.
func (h *Host) awaitUp(ctx context.Context) error {
	limit := bootTime
	if h.xen != nil {
		limit = xenBootTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var err error
	select {
	case <-h.agent.up:
		return h.monitor.greet(ctx)
	case <-h.ended:
		err = h.endOfQEMU()
	case <-ctx.Done():
		err = fmt.Errorf("%w; its console: %s", ctx.Err(), h.consoleTail())
	}
	return fmt.Errorf("lab %s did not come up: %w", h.Shape.Name, err)
}

func (h *Host) enterWithin(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return h.enter(ctx)
}

//go:embed init.sh
var initScript []byte

//go:embed start.sh
var startScript []byte

// prepare makes the lab's folder: its share and initial file system.
func prepare(ctx context.Context, o Options, k kernel, x *xenFiles) (*Host, error) {
	h, err := claimFolder(ctx)
	if err != nil {
		return nil, fmt.Errorf("preparing the lab: %w", err)
	}
	h.Shape, h.xen = o.Shape, x
	err = h.fillShare(o, k)
	if err == nil {
		err = buildInitramfs(ctx, k, x, filepath.Join(h.folder, "initrd"))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("preparing the lab: %w", err), h.Close())
	}
	return h, nil
}

// claimFolder makes a lab's folder with a lock file that this process holds,
// after it removes the folders of labs whose process has died: their lock is
// free. One process at a time does this, so that none removes a folder that
// another is just making.
func claimFolder(ctx context.Context) (*Host, error) {
	cache, err := cacheFolder()
	if err != nil {
		return nil, err
	}
	unlock, err := lockFile(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	sweep()
	folder, err := os.MkdirTemp("", folderPrefix)
	if err != nil {
		return nil, err
	}
	h := &Host{folder: folder, ended: make(chan struct{})}
	close(h.ended) // nothing runs yet
	if h.lock, err = os.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err == nil {
		err = unix.Flock(int(h.lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// sweep removes the folders whose lock is free or was never made.
func sweep() {
	folders, _ := filepath.Glob(filepath.Join(os.TempDir(), folderPrefix+"*"))
	for _, folder := range folders {
		f, err := os.Open(filepath.Join(folder, "lock"))
		if errors.Is(err, os.ErrNotExist) {
			os.RemoveAll(folder)
		}
		if err != nil {
			continue // or it belongs to another user
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			os.RemoveAll(folder)
		}
		f.Close()
	}
}

func (h *Host) fillShare(o Options, k kernel) error {
	folders := []string{"share/bin", "share/files"}
	if o.Share != "" {
		folders = append(folders, "share/share") // where the lab mounts it
	}
	for _, sub := range folders {
		if err := os.MkdirAll(filepath.Join(h.folder, sub), 0o755); err != nil {
			return err
		}
	}
	files := o.Files
	if files == nil {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		files = map[string]string{"numavisor": self}
	}
	for name, source := range files {
		if err := copyFile(source, h.share("bin", name)); err != nil {
			return err
		}
	}
	return copyFile(k.image, h.share("vmlinuz"))
}

func (h *Host) share(parts ...string) string {
	return filepath.Join(append([]string{h.folder, "share"}, parts...)...)
}

// Share returns the folder that the lab sees as /lab.
func (h *Host) Share() string { return h.share() }

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// buildInitramfs packs busybox, the agent, the modules that reach the root and KVM's or
// Xen's, Xen's tools, and init.
func buildInitramfs(ctx context.Context, k kernel, x *xenFiles, target string) error {
	modules := append(slices.Clone(portModules), "net/9p/9pnet", "net/9p/9pnet_virtio", "fs/netfs/netfs",
		"fs/fscache/fscache", "fs/9p/9p",
		"fs/overlayfs/overlay", "drivers/block/virtio_blk", "lib/crc16", "crypto/crc32c_generic", "lib/libcrc32c",
		"fs/mbcache", "fs/jbd2/jbd2", "fs/ext4/ext4", "virt/lib/irqbypass", "drivers/crypto/ccp/ccp",
		"arch/x86/kvm/kvm", "arch/x86/kvm/kvm-amd")
	busybox, err := program("busybox")
	if err != nil {
		return err
	}
	agent, err := compileAgent(ctx)
	if err != nil {
		return err
	}
	start := target + ".start"
	if err := os.WriteFile(start, startScript, 0o755); err != nil {
		return err
	}
	defer os.Remove(start)
	files := map[string]string{"bin/busybox": busybox, "agent": agent, "start.sh": start}
	if x != nil {
		files["xen.tar"] = x.tools
		for _, m := range []string{"xen-privcmd", "xen-evtchn", "xen-gntdev", "xen-gntalloc", "xenfs/xenfs"} {
			modules = append(modules, "drivers/xen/"+m)
		}
	}
	for _, m := range modules {
		files["mod/"+filepath.Base(m)+".ko"] = filepath.Join(k.modules, m+".ko")
	}
	return packInitramfs(initScript, files, []string{"bin", "mod", "proc", "sys", "dev", "root", "ov", "new"},
		target)
}

// packInitramfs writes a compressed cpio archive with an init program, files and
// empty folders. The folders of the files are among these.
func packInitramfs(init []byte, files map[string]string, folders []string, target string) (err error) {
	out, err := os.Create(target)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, out.Close()); err != nil {
			err = fmt.Errorf("packing %s: %w", target, err)
		}
	}()
	zip, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	if err != nil {
		return err
	}
	archive := cpio.Newc.Writer(zip)
	for _, d := range folders { // a file's folder comes before it
		if err := archive.WriteRecord(cpio.Directory(d, 0o755)); err != nil {
			return err
		}
	}
	if err := archive.WriteRecord(cpio.StaticFile("init", string(init), 0o755)); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content, err := os.ReadFile(files[name])
		if errors.Is(err, fs.ErrNotExist) {
			continue // which modules there are differs between kernels; init says what is missing
		}
		if err != nil {
			return err
		}
		if err := archive.WriteRecord(cpio.StaticFile(name, string(content), 0o755)); err != nil {
			return err
		}
	}
	return errors.Join(cpio.WriteTrailer(archive), zip.Close())
}

// start runs QEMU from a thread that lives as long as it: the kernel ends QEMU
// with that thread (PR_SET_PDEATHSIG), so even kill -9 of this process leaves nothing.
func (h *Host) start(ctx context.Context, o Options, k kernel, m machine) error {
	args, env, err := h.arguments(ctx, o, k, m)
	if err != nil {
		return err
	}
	agent, agentEnd, err := newAgentLink()
	if err != nil {
		return err
	}
	defer agentEnd.Close()
	h.agent = agent
	control, controlEnd, err := socketPair()
	if err != nil {
		return err
	}
	defer controlEnd.Close()
	h.monitor = &monitor{control, bufio.NewReader(control)}
	console, err := os.Create(filepath.Join(h.folder, "console"))
	if err != nil {
		return err
	}
	ctx, h.stop = context.WithCancel(context.WithoutCancel(ctx))
	qemu := exec.CommandContext(ctx, o.QEMU, args...)
	qemu.Stdout, qemu.Stderr = console, console
	qemu.Env = append(os.Environ(), env...)
	qemu.ExtraFiles = []*os.File{agentEnd, controlEnd} // 3 and 4: see arguments
	h.shared = o.Share != ""
	qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	h.ended = make(chan struct{})
	started := make(chan error)
	go func() {
		defer close(h.ended)
		defer console.Close()
		runtime.LockOSThread()
		err := qemu.Start()
		started <- err
		if err == nil {
			h.cause = qemu.Wait()
		}
	}()
	return <-started
}

// Console returns what the lab's kernel and QEMU have printed.
func (h *Host) Console() ([]byte, error) { return os.ReadFile(filepath.Join(h.folder, "console")) }

// consoleTail returns the last lines of the console, without control characters: firmware moves the cursor with them.
func (h *Host) consoleTail() string {
	text, err := h.Console()
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(plainText(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-12):], " | ")
}

// terminalOrder matches an order to a terminal (ECMA-48): ESC c, or ESC [ parameters letter.
var terminalOrder = regexp.MustCompile(`\x1b(c|\[[0-9;?=]*[A-Za-z])`)

// plainText removes orders to a terminal, and all characters that are not printed, but not the ends of lines.
func plainText(text []byte) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return -1
	}, string(terminalOrder.ReplaceAll(bytes.ToValidUTF8(text, nil), nil)))
}

func (h *Host) startLibvirt(ctx context.Context, progress func(string, ...any)) error {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, libvirtTime)
	defer cancel()
	var out, errOut bytes.Buffer
	// virtlogd is not needed: guests' output goes to files (stdio_handler).
	status, err := h.Run(
		ctx,
		[]string{"sh", "-c",
			"setsid libvirtd >/run/libvirtd.log 2>&1 & until virsh -q list >/dev/null 2>&1; do sleep 0.3; done"},
		&out,
		&errOut,
	)
	if err = failed(status, errOut.Bytes(), err); err != nil {
		return fmt.Errorf("libvirtd in the lab does not answer: %w", err)
	}
	progress("libvirt answers after %.0f s", time.Since(begin).Seconds())
	return nil
}

// Close ends the lab and removes all its files and processes outside. It powers
// off a lab that shares a folder, so that everything written there reaches the
// folder.
func (h *Host) Close() error {
	if h.shared && h.running() && h.alive() == nil {
		if err := h.agent.send(powerOffMessage, 0, nil); err == nil {
			select {
			case <-h.ended:
			case <-time.After(powerOffTime):
			}
		}
	}
	return h.Kill()
}

// Kill ends the lab at once, without powering it off.
func (h *Host) Kill() error {
	if h.stop != nil {
		h.stop()
		<-h.ended
	}
	if h.agent != nil {
		h.agent.close()
	}
	if h.monitor != nil {
		_ = h.monitor.conn.Close()
	}
	if h.lock != nil {
		defer h.lock.Close()
	}
	return os.RemoveAll(h.folder)
}

func (h *Host) running() bool {
	select {
	case <-h.ended:
		return false
	default:
		return true
	}
}
