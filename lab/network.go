package lab

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"
)

// Cabled is a lab on a cable, with its address there.
type Cabled struct {
	*Host
	Address string
}

// cableTime bounds Connect: a lab finds its new network device in a second or two.
const cableTime = 2 * time.Minute

// Connect joins two labs that were restored (Options.Saved) by a network cable between them.
// Each gets an address, a name, an identity (machine-id) and a libvirt daemon that accepts
// connections over TCP without authentication. Labs restored from one saved lab are alike
// otherwise, and libvirt refuses to migrate a VM to itself.
func Connect(ctx context.Context, first, second *Host) (a, b Cabled, err error) {
	ctx, cancel := context.WithTimeout(ctx, cableTime)
	defer cancel()
	k, err := fetchKernel(ctx, func(string, ...any) {})
	if err != nil {
		return a, b, err
	}
	cable := filepath.Join(first.folder, "cable")
	for i, h := range []*Host{first, second} {
		if err := h.plug(ctx, k, cable, i+1); err != nil {
			return a, b, fmt.Errorf("connecting lab %d of 2: %w", i+1, err)
		}
	}
	return Cabled{first, address(1)}, Cabled{second, address(2)}, nil
}

func address(number int) string { return fmt.Sprintf("10.77.0.%d", number) }

// plug gives a lab the network device at its end of the cable; the first end listens.
func (h *Host) plug(ctx context.Context, k kernel, cable string, number int) error {
	for _, m := range []string{"net/core/failover", "drivers/net/net_failover", "drivers/net/virtio_net"} {
		file := filepath.Base(m) + ".ko"
		if err := copyFile(filepath.Join(k.modules, m+".ko"), h.share("files", file)); err != nil {
			return err
		}
	}
	err := h.monitor.do(ctx, "netdev_add", map[string]any{"type": "stream", "id": "cable", "server": number == 1,
		"addr": map[string]any{"type": "unix", "path": cable}}, nil)
	if err == nil {
		err = h.monitor.do(ctx, "device_add", map[string]any{"driver": "virtio-net-pci", "id": "nic", "netdev": "cable",
			"romfile": "", "mac": fmt.Sprintf("52:54:00:00:00:%02x", number)}, nil)
	}
	if err != nil {
		return err
	}
	var out, errOut bytes.Buffer
	status, err := h.Run(ctx, []string{"bash", "-c", plugScript, "plug", fmt.Sprint(number), address(number)},
		io.MultiWriter(&out, &errOut), &errOut)
	if err != nil || status != 0 {
		return fmt.Errorf("status %d %s: %w", status, strings.TrimSpace(errOut.String()), err)
	}
	return nil
}

// plugScript brings the device up, and starts libvirtd again with an identity of its own.
const plugScript = `set -e
for m in failover net_failover virtio_net; do insmod /lab/files/$m.ko 2>/dev/null || true; done
n=0; until [ -e /sys/class/net/eth0 ] || [ $n -ge 300 ]; do sleep 0.1; n=$((n + 1)); done
ip addr add "$2/24" dev eth0; ip link set eth0 up
hostname "lab$1"; printf '%032x\n' "$((0x1ab0000 + $1))" > /etc/machine-id
printf '127.0.0.1 localhost\n10.77.0.1 lab1\n10.77.0.2 lab2\n' > /etc/hosts
{ printf 'listen_tls = 0\nlisten_tcp = 1\nauth_tcp = "none"\nauth_unix_rw = "none"\n'
  printf 'host_uuid = "0000abcd-0000-4000-8000-%012x"\n' "$1"; } > /run/libvirtd.conf
pkill -x libvirtd; while pgrep -x libvirtd >/dev/null; do sleep 0.1; done
setsid libvirtd --listen --config /run/libvirtd.conf >/run/libvirtd.log 2>&1 &
until virsh -q list >/dev/null 2>&1; do sleep 0.3; done`
