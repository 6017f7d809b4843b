package lab

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	saveTime    = 10 * time.Minute // a boot, libvirtd, a VM; on a busy machine
	restoreTime = 2 * time.Minute  // some 1.5 s when the machine is idle
	mostSaved   = 3                // labs on disk; each has some 0.5 GB
)

// warmScript starts a VM once, so that libvirt queries and stores QEMU's
// capabilities, and removes the VM.
const warmScript = `cat > /run/warm.xml <<'X'
<domain type='kvm'><name>warm</name><memory unit='MiB'>64</memory><vcpu>2</vcpu><numatune><memory mode='strict' nodeset='0'/></numatune>
<memoryBacking><source type='memfd'/><access mode='shared'/><allocation mode='immediate'/></memoryBacking>
<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features><cpu mode='host-passthrough'/>
<devices><controller type='usb' model='none'/><memballoon model='none'/></devices></domain>
X
virsh -q create /run/warm.xml && virsh -q list >/dev/null && virsh -q capabilities >/dev/null && virsh -q domcapabilities >/dev/null &&
virsh -q destroy warm && numactl --hardware >/dev/null && rm /run/warm.xml && sleep 1`

// restore returns a lab from the saved one of its shape, which it makes if
// there is none. The lab takes commands, and libvirtd answers in it.
func restore(ctx context.Context, o Options, k kernel) (h *Host, err error) {
	if !o.Shape.HasKVM() || o.Share != "" {
		return nil, errors.New("a saved lab has KVM and shares no folder; boot one instead")
	}
	begin := time.Now()
	cache, err := cacheFolder()
	if err != nil {
		return nil, err
	}
	unlock, err := lockFile(ctx, filepath.Join(cache, "saved.lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	image, err := makeRootImage(ctx, cache, o.Progress)
	if err != nil {
		return nil, err
	}
	key, err := savedKey(ctx, o, k, image)
	if err != nil {
		return nil, err
	}
	folder := filepath.Join(cache, "saved", key)
	if _, err := os.Stat(filepath.Join(folder, "state")); err != nil {
		if err := save(ctx, o, k, image, folder); err != nil {
			return nil, fmt.Errorf("saving a lab %s: %w", o.Shape.Name, err)
		}
		begin = time.Now()
	}
	now := time.Now()
	if err := os.Chtimes(folder, now, now); err != nil {
		return nil, err
	}
	h, err = wake(ctx, o, k,
		machine{root: image.path, initrd: filepath.Join(folder, "initrd"), memory: folder, incoming: true})
	if err != nil {
		err = fmt.Errorf("restoring a lab %s: %w; it is removed and made again by the next", o.Shape.Name, err)
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	o.Progress("restored after %.1f s", time.Since(begin).Seconds())
	return h, nil
}

// wake starts a lab from a saved one.
func wake(ctx context.Context, o Options, k kernel, m machine) (*Host, error) {
	ctx, cancel := context.WithTimeout(ctx, restoreTime)
	defer cancel()
	h, err := claimFolder(ctx)
	if err != nil {
		return nil, err
	}
	h.Shape = o.Shape
	err = h.fillShare(o, k)
	if err == nil {
		err = h.start(ctx, o, k, m)
	}
	if err == nil {
		err = h.monitor.greet(ctx)
	}
	if err == nil {
		err = h.monitor.restore(ctx, filepath.Join(m.memory, "state"))
	}
	if err == nil {
		err = h.enter(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, fmt.Errorf("the end of its console: %s", h.consoleTail()), h.Kill())
	}
	return h, nil
}

// savedKey names all that a saved lab depends on.
func savedKey(ctx context.Context, o Options, k kernel, image rootImage) (string, error) {
	version, err := askQEMUVersion(ctx, o.QEMU)
	if err != nil {
		return "", err
	}
	shape, err := json.Marshal(o.Shape)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	// An image that was removed and made again has the same packages and other blocks: the memory of
	// a saved lab, with what its kernel has read, does not fit it.
	for _, file := range []string{k.image, o.QEMU, image.path} {
		info, err := os.Stat(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(sum, file, info.Size(), info.ModTime().UnixNano())
	}
	fmt.Fprintln(sum, version, string(shape), warmScript)
	for _, source := range [][]byte{initScript, startScript, agentSource, slowClockSource} {
		fmt.Fprintln(sum, len(source))
		sum.Write(source)
	}
	fmt.Fprintln(sum, (&Host{}).machineArguments(o.Shape, k, machine{root: image.path}))
	return o.Shape.Name + "-" + hex.EncodeToString(sum.Sum(nil)[:8]), nil
}

// save boots a lab, prepares it, and saves it into a folder.
func save(ctx context.Context, o Options, k kernel, image rootImage, folder string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, saveTime)
	defer cancel()
	o.Progress("saving a lab %s, once: some 40 s", o.Shape.Name)
	begin := time.Now()
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		return err
	}
	forgetSaved(filepath.Dir(folder), mostSaved-1, image)
	fresh, err := os.MkdirTemp(filepath.Dir(folder), "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(fresh)
	m := machine{root: image.path, initrd: filepath.Join(fresh, "initrd"), memory: fresh}
	if err := buildInitramfs(ctx, k, nil, m.initrd); err != nil {
		return err
	}
	h, err := claimFolder(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Kill()) }()
	if err := h.bootToSave(ctx, o, k, m); err != nil {
		return err
	}
	if err := h.monitor.save(ctx, filepath.Join(fresh, "state")); err != nil {
		return err
	}
	if err := os.Chmod(fresh, 0o755); err != nil {
		return err
	}
	o.Progress("saved after %.0f s", time.Since(begin).Seconds())
	return os.Rename(fresh, folder)
}

// bootToSave boots a lab without a share, starts libvirtd and a first VM.
func (h *Host) bootToSave(ctx context.Context, o Options, k kernel, m machine) error {
	h.Shape = o.Shape
	o.Files = map[string]string{} // programs come after the restore
	if err := h.fillShare(o, k); err != nil {
		return err
	}
	if err := h.start(ctx, o, k, m); err != nil {
		return err
	}
	if err := h.awaitUp(ctx); err != nil {
		return err
	}
	if err := h.startLibvirt(ctx, o.Progress); err != nil {
		return err
	}
	if err := h.script(ctx, warmScript); err != nil {
		return fmt.Errorf("starting a first VM: %w", err)
	}
	return nil
}

// forgetSaved removes all but the newest saved labs, what an interrupted save
// left, and other root images than the present one. QEMU processes that use
// one continue: their files are open.
func forgetSaved(folder string, most int, image rootImage) {
	type saved struct {
		path string
		used time.Time
	}
	var all []saved
	entries, _ := os.ReadDir(folder)
	for _, e := range entries {
		path := filepath.Join(folder, e.Name())
		if info, err := e.Info(); err == nil && !strings.HasPrefix(e.Name(), "new-") {
			all = append(all, saved{path, info.ModTime()})
			continue
		}
		os.RemoveAll(path)
	}
	slices.SortFunc(all, func(a, b saved) int { return b.used.Compare(a.used) })
	for _, s := range all[min(most, len(all)):] {
		os.RemoveAll(s.path)
	}
	images, _ := filepath.Glob(filepath.Join(filepath.Dir(folder), "root-*.img"))
	for _, other := range images {
		if other != image.path {
			os.Remove(other)
		}
	}
}

//go:embed enter.sh
var enterScript string

// enter sets the lab's clock and mounts its share, which neither a boot nor a
// restore does.
func (h *Host) enter(ctx context.Context) error {
	if err := h.agent.goOn(ctx); err != nil {
		return fmt.Errorf("the lab's agent does not answer: %w", err)
	}
	return h.script(ctx, enterScript)
}

// script runs a shell script with arguments in the lab and requires status 0.
func (h *Host) script(ctx context.Context, script string, args ...string) error {
	var said strings.Builder
	status, err := h.Run(ctx, append([]string{"bash", "-c", script, "bash"}, args...), io.Discard, &said)
	if err == nil && status != 0 {
		err = fmt.Errorf("status %d: %s", status, strings.TrimSpace(said.String()))
	}
	return err
}
