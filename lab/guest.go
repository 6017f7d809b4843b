package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Where the lab's guests find their kernel and initial file system, inside the lab.
const (
	GuestKernel = "/lab/vmlinuz"
	GuestInitrd = "/lab/files/guest.initrd"
	// GuestCommandLine keeps a guest's boot short and quiet.
	GuestCommandLine = "console=ttyS0 quiet panic=-1 transparent_hugepage=never tsc=reliable"
)

// Guest describes a guest of the lab that libvirt or, in a Xen lab, xl starts without Numavisor.
type Guest struct {
	Name   string
	Tuning string // its <cputune>, <numatune> and similar elements, or lines of xl's configuration; default none
}

// xl is the guest's configuration for Xen, as a PVH guest: two vCPUs and 192 MiB.
func (g Guest) xl() string {
	return fmt.Sprintf(`# A guest of the lab.
name = "%s"
type = "pvh"
kernel = "%s"
ramdisk = "%s"
extra = "%s"
memory = 192
vcpus = 2
%s
`, g.Name, GuestKernel, GuestInitrd, strings.Replace(GuestCommandLine, "ttyS0", "hvc0", 1), g.Tuning)
}

// xml is the guest's domain XML: two vCPUs and 192 MiB; a node of the lab has room for four.
func (g Guest) xml() string {
	return fmt.Sprintf(`<domain type='kvm'><name>%s</name><memory unit='MiB'>192</memory><vcpu>2</vcpu>%s
<os><type arch='x86_64' machine='q35'>hvm</type>
<kernel>%s</kernel><initrd>%s</initrd><cmdline>%s</cmdline></os><features><acpi/></features>
<cpu mode='host-passthrough'/>
<devices><serial type='pty'/><controller type='usb' model='none'/><memballoon model='none'/></devices></domain>
`, g.Name, g.Tuning, GuestKernel, GuestInitrd, GuestCommandLine)
}

// StartGuest starts a guest through libvirt or xl; AddGuest has been called. AwaitGuest waits until it has booted.
func (h *Host) StartGuest(ctx context.Context, g Guest) error {
	var errOut bytes.Buffer
	script, text := `printf %s "$1" > "/run/$0.xml" && virsh -q create "/run/$0.xml"`, g.xml()
	if h.xen != nil {
		script, text = `printf %s "$1" > "/run/$0.cfg" && xl create "/run/$0.cfg"`, g.xl()
	}
	status, err := h.Run(ctx, []string{"sh", "-c", script, g.Name, text}, io.Discard, &errOut)
	if err = failed(status, errOut.Bytes(), err); err != nil {
		return fmt.Errorf("starting VM %s in the lab: %w", g.Name, err)
	}
	return nil
}

//go:embed guest/guest.c
var guestSource []byte

// AddGuest puts the guests' initial file system into the lab's share: a
// small program that fills the guest's memory and measures its bandwidth when
// asked to over the serial console (guest/guest.c says how).
func (h *Host) AddGuest(ctx context.Context) error {
	program, err := compileGuest(ctx)
	if err != nil {
		return fmt.Errorf("the lab's VM: %w", err)
	}
	init, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	// Written under another name first: tools inside never see half of it.
	fresh := filepath.Join(h.folder, "guest.initrd")
	if err := packInitramfs(init, nil, []string{"proc", "sys", "dev"}, fresh); err != nil {
		return fmt.Errorf("the lab's VM: %w", err)
	}
	return os.Rename(fresh, h.share("files", "guest.initrd"))
}

func compileGuest(ctx context.Context) (string, error) {
	return compileStatic(ctx, "guest", guestSource)
}

//go:embed guest/scatter.c
var scatterSource []byte

// Scatter is where the lab finds the program that AddScatter adds.
const Scatter = "/lab/files/scatter"

// AddScatter puts the program scatter into the lab's share: it distributes a
// process's memory over nodes, without a memory policy (guest/scatter.c says how).
func (h *Host) AddScatter(ctx context.Context) error {
	program, err := compileStatic(ctx, "scatter", scatterSource)
	if err != nil {
		return fmt.Errorf("the lab's program scatter: %w", err)
	}
	return copyFile(program, h.share("files", "scatter"))
}

// compileStatic returns a program in the cache folder, and compiles it if it is not there.
func compileStatic(ctx context.Context, name string, source []byte) (string, error) {
	return compileOnce(ctx, name, source, "-static", "-pthread")
}

// compileOnce returns what gcc makes of a source with these flags, from the cache folder if it is there.
func compileOnce(ctx context.Context, name string, source []byte, flags ...string) (string, error) {
	cache, err := cacheFolder()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append([]byte(strings.Join(flags, " ")+"\n"), source...))
	target := filepath.Join(cache, name+"-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}
	return target, compileC(ctx, source, target, flags...)
}

// compileC compiles one C source into the cache, in one step as others see it.
func compileC(ctx context.Context, source []byte, target string, flags ...string) error {
	gcc, err := program("gcc")
	if err != nil {
		return err
	}
	fresh, err := os.CreateTemp(filepath.Dir(target), "compiled-")
	if err != nil {
		return err
	}
	defer os.Remove(fresh.Name())
	fresh.Close()
	compile := exec.CommandContext(ctx, gcc, append(flags, "-O2", "-x", "c", "-", "-o", fresh.Name())...)
	compile.Stdin = strings.NewReader(string(source))
	if out, err := compile.CombinedOutput(); err != nil {
		return fmt.Errorf("compiling %s: %w: %s", filepath.Base(target), err, lastLine(out))
	}
	if err := os.Chmod(fresh.Name(), 0o755); err != nil {
		return err
	}
	return os.Rename(fresh.Name(), target)
}

// AwaitGuest waits until a guest has booted and filled its memory. A guest that has not answered after four
// minutes is reset once, and AwaitGuest says so on standard error: an emulated KVM guest may hang while it boots.
func (h *Host) AwaitGuest(ctx context.Context, name string) error {
	// Output before the log is opened is lost, and so is input before the guest
	// reads it: so repeat the question until the guest answers.
	said, err := h.onConsole(ctx, name, `n=0
until grep -aq "^NUMAVISOR-GUEST" "$log"; do
  printf 'hello\n' > "$tty"; sleep 1; n=$((n + 1))
  if [ $n = 240 ] && [ ! -e /proc/xen ]; then virsh -q reset "$1" && echo "guest $1 did not answer for 240 s and was reset"; fi
done`)
	if said = strings.TrimSpace(said); said != "" {
		fmt.Fprintf(os.Stderr, "lab: %s\n", said)
	}
	return err
}

// Bandwidth asks a guest for its memory bandwidth in MB/s: the mean over its
// vCPUs, one at a time, each measured for that long by the guest's own clock.
func (h *Host) Bandwidth(ctx context.Context, name string, each time.Duration) (float64, error) {
	// The carriage return ends the line: before it arrives the figure may be incomplete.
	answer, err := h.onConsole(ctx, name, fmt.Sprintf(`from=$(($(wc -c < "$log") + 1)); printf 'bw %d\n' > "$tty"
until tail -c +$from "$log" | grep -aE $'^BW [0-9.]+\r'; do sleep 0.2; done | tr -d '\r' | cut -d' ' -f2`, each.Milliseconds()))
	if err != nil {
		return 0, err
	}
	rate, err := strconv.ParseFloat(strings.TrimSpace(answer), 64)
	if err != nil {
		return 0, fmt.Errorf("VM %s in the lab answered %q for its bandwidth", name, answer)
	}
	return rate, nil
}

// Work is the progress of a guest's work.
type Work struct {
	Elapsed time.Duration // by the guest's own clock, since it began
	Lines   uint64        // cache lines changed, over and over, by all vCPUs
}

// StartWork starts guests that have answered AwaitGuest working on their
// memory, every vCPU on its own part. The parameter every is the time between
// their reports of progress, times the number of reports: see Worked.
func (h *Host) StartWork(ctx context.Context, names []string, every time.Duration, times int) error {
	var orders []WorkOrder
	for _, name := range names {
		orders = append(orders, WorkOrder{Name: name, Times: times})
	}
	return h.StartOrders(ctx, every, orders)
}

// WorkOrder is the work of one guest.
type WorkOrder struct {
	Name   string
	Times  int // number of reports
	Phases []Phase
}

// Phase is the part of its memory on which a guest works from a time on.
type Phase struct {
	At       time.Duration // since the guest began to work
	From, To int           // percent of each vCPU's part; equal: the guest is idle
}

// StartOrders starts guests like StartWork, each with its own number of reports
// and, if it has phases, on only a part of its memory. Before its first phase a
// guest works on all of it. Eight phases are the most.
func (h *Host) StartOrders(ctx context.Context, every time.Duration, orders []WorkOrder) error {
	var pairs []string
	for _, o := range orders {
		pairs = append(pairs, o.Name, o.line(every))
	}
	return h.typeLines(ctx, pairs)
}

// line is what guest.c reads.
func (o WorkOrder) line(every time.Duration) string {
	line := fmt.Sprintf("work %d %d", every.Milliseconds(), o.Times)
	for _, p := range o.Phases {
		line += fmt.Sprintf(" %d %d %d", p.At.Milliseconds(), p.From, p.To)
	}
	return line
}

// typeLines types lines on the consoles of guests that have answered AwaitGuest:
// a name, then its line, then the next name.
func (h *Host) typeLines(ctx context.Context, pairs []string) error {
	// Find all terminals before starting the first guest.
	script := `ttys=; for ((i = 1; i <= $#; i += 2)); do ttys="$ttys $(` + h.findTTY("${!i}") + `)" || exit; done
for tty in $ttys; do printf '%s\n' "$2" > "$tty" || exit; shift 2; done`
	var errOut bytes.Buffer
	status, err := h.Run(ctx, append([]string{"bash", "-c", script, "tell"}, pairs...), io.Discard, &errOut)
	if err = failed(status, errOut.Bytes(), err); err != nil {
		return fmt.Errorf("sending %q to VMs in the lab: %w", pairs, err)
	}
	return nil
}

// Worked returns a guest's reports about its work up to now. It reads a file
// outside the lab, so that the call costs the lab nothing.
func (h *Host) Worked(name string) ([]Work, error) {
	text, err := h.GuestConsole(name)
	return parseWork(text), err
}

// GuestConsole returns the output so far of a guest that has answered AwaitGuest.
func (h *Host) GuestConsole(name string) ([]byte, error) {
	logs, err := filepath.Glob(h.share("files", "console-"+name+"-*"))
	if err != nil || len(logs) != 1 {
		return nil, fmt.Errorf("VM %s has %d consoles: %w", name, len(logs),
			errors.Join(err, errors.New("one is wanted")))
	}
	return os.ReadFile(logs[0])
}

// parseWork reads the lines of guest.c's command work. It ignores an incomplete
// line, and everything else on the console.
func parseWork(console []byte) []Work {
	var all []Work
	for line := range bytes.Lines(console) {
		var millis int64
		var w Work
		if n, _ := fmt.Sscanf(string(line), "WORK %d %d\r\n", &millis, &w.Lines); n == 2 &&
			bytes.HasSuffix(line, []byte("\n")) {
			w.Elapsed = time.Duration(millis) * time.Millisecond
			all = append(all, w)
		}
	}
	return all
}

// findTTY is a command that prints the console's terminal of the guest that a word of the shell names.
func (h *Host) findTTY(word string) string {
	if h.xen != nil {
		// A guest with firmware has a serial port in addition to Xen's console.
		return fmt.Sprintf(`d=/local/domain/$(xl domid "%s"); xenstore-read "$d/serial/0/tty" 2>/dev/null || `+
			`xenstore-read "$d/console/tty"`, word)
	}
	return fmt.Sprintf(`virsh -q ttyconsole "%s"`, word)
}

// onConsole runs a script in the lab with a guest's serial console, a pty of
// libvirt's or of xenconsoled's: $tty to write to, $log with all its output.
func (h *Host) onConsole(ctx context.Context, name, script string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	script = `tty=$(` + h.findTTY("$1") + `) || exit; log=/lab/files/console-$1-${tty##*/}
reader=/run/reader-$1-${tty##*/}; : >> "$log"
kill -0 "$(cat "$reader" 2>/dev/null)" 2>/dev/null || { # none yet, or of a VM that had this terminal before
  setsid cat "$tty" >> "$log" 2>/dev/null & echo $! > "$reader"; }
` + script
	var out, errOut bytes.Buffer
	status, err := h.Run(ctx, []string{"bash", "-c", script, "console", name}, &out, &errOut)
	if err = errors.Join(err, ctx.Err()); err == nil && status != 0 {
		err = fmt.Errorf("status %d: %s", status, bytes.TrimSpace(errOut.Bytes()))
	}
	if err != nil {
		return "", fmt.Errorf("VM %s in the lab does not answer on its console: %w", name, err)
	}
	return out.String(), nil
}

// askTime bounds a guest's boot: some 10 s on an idle machine, minutes on a very busy one.
const askTime = 8 * time.Minute
