package lab

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
)

// MirrorInitrd is where the lab finds the initial file system that AddMirror adds.
const MirrorInitrd = "/lab/files/mirror.initrd"

//go:embed guest/mirror.c
var mirrorSource []byte

// AddMirror puts the initial file system of mirrored guests into the lab's share: a program that works with
// barriers when asked to over the serial console (guest/mirror.c says how), and the agent, a static program
// of this machine. The program is there alone, too, for the lab's own kernel.
func (h *Host) AddMirror(ctx context.Context, agent string) error {
	program, err := compileStatic(ctx, "mirror", mirrorSource)
	if err != nil {
		return fmt.Errorf("the lab's mirrored VM: %w", err)
	}
	init, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	if err := os.WriteFile(h.share("files", "mirror"), init, 0o755); err != nil {
		return err
	}
	k, err := fetchKernel(ctx, func(string, ...any) {})
	if err != nil {
		return err
	}
	files := map[string]string{"numavisor-guest": agent}
	for _, m := range append(portModules, vsockModules...) {
		files["mod/"+filepath.Base(m)+".ko"] = filepath.Join(k.modules, m+".ko")
	}
	// Written under another name first: tools inside never see half of it.
	fresh := filepath.Join(h.folder, "mirror.initrd")
	if err := packInitramfs(init, files, []string{"mod", "proc", "sys", "dev", "run"}, fresh); err != nil {
		return fmt.Errorf("the lab's mirrored VM: %w", err)
	}
	return os.Rename(fresh, h.share("files", "mirror.initrd"))
}

// portModules are those of a virtio-serial port.
var portModules = []string{"drivers/virtio/virtio", "drivers/virtio/virtio_ring",
	"drivers/virtio/virtio_pci_legacy_dev", "drivers/virtio/virtio_pci_modern_dev", "drivers/virtio/virtio_pci",
	"drivers/char/virtio_console"}

// vsockModules are those of a vsock. A VM loads them with the word vsock on its kernel's command line.
var vsockModules = []string{"net/vmw_vsock/vsock", "net/vmw_vsock/vmw_vsock_virtio_transport_common",
	"net/vmw_vsock/vmw_vsock_virtio_transport"}

// AddVSock lets the lab's VMs have a vsock (vhost_vsock in the host's kernel).
func (h *Host) AddVSock(ctx context.Context) error {
	k, err := fetchKernel(ctx, func(string, ...any) {})
	if err != nil {
		return err
	}
	for _, m := range []string{"net/vmw_vsock/vsock", "net/vmw_vsock/vmw_vsock_virtio_transport_common",
		"drivers/vhost/vhost_iotlb", "drivers/vhost/vhost", "drivers/vhost/vhost_vsock"} {
		file := filepath.Base(m) + ".ko"
		if err := copyFile(filepath.Join(k.modules, m+".ko"), h.share("files", file)); err != nil {
			return err
		}
	}
	return h.script(ctx, vsockScript)
}

const vsockScript = `set -e
for m in vsock vmw_vsock_virtio_transport_common vhost_iotlb vhost vhost_vsock; do
  grep -q "^$m " /proc/modules || insmod /lab/files/$m.ko
done
test -c /dev/vhost-vsock`

// Type types a line on the console of a guest that has answered AwaitGuest.
func (h *Host) Type(ctx context.Context, name, line string) error {
	return h.typeLines(ctx, []string{name, line})
}

// TypeAll types a line on the consoles of guests that have answered AwaitGuest, on one after the other at once.
func (h *Host) TypeAll(ctx context.Context, names []string, line string) error {
	var pairs []string
	for _, name := range names {
		pairs = append(pairs, name, line)
	}
	return h.typeLines(ctx, pairs)
}

// Said returns the output so far of a guest that has answered AwaitGuest. It reads a file outside the
// lab, so that the call costs the lab nothing.
func (h *Host) Said(name string) (string, error) {
	text, err := h.GuestConsole(name)
	return string(text), err
}
