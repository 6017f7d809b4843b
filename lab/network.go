package lab

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"
)

// Cabled is a lab on a cable, with its address there.
type Cabled struct {
	*Host
	Address string
}

// cableTime bounds Connect: a lab finds its new network device in a second or two.
const cableTime = 2 * time.Minute

// Connect joins two labs by a network cable between them. Each gets an address, a name (lab1, lab2) and an identity
// (machine-id). How each accepts migrations depends on the hypervisor. A lab with KVM was restored (Options.Saved),
// and its libvirt daemon accepts connections over TCP without authentication; labs restored from one saved lab are
// alike otherwise, and libvirt refuses to migrate a VM to itself. A lab with Xen accepts ssh from the other one's root.
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
	if first.xen != nil {
		err = acceptSSH(ctx, first, second)
	} else {
		err = errors.Join(first.acceptLibvirt(ctx, 1), second.acceptLibvirt(ctx, 2))
	}
	return Cabled{first, address(1)}, Cabled{second, address(2)}, err
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
	return h.script(ctx, plugScript, fmt.Sprint(number), address(number))
}

// plugScript brings the device up.
const plugScript = `set -e
for m in failover net_failover virtio_net; do insmod /lab/files/$m.ko 2>/dev/null || true; done
n=0; until [ -e /sys/class/net/eth0 ] || [ $n -ge 300 ]; do sleep 0.1; n=$((n + 1)); done
ip addr add "$2/24" dev eth0; ip link set eth0 up
hostname "lab$1"; printf '%032x\n' "$((0x1ab0000 + $1))" > /etc/machine-id
printf '127.0.0.1 localhost\n10.77.0.1 lab1\n10.77.0.2 lab2\n' > /etc/hosts`

// acceptLibvirt starts libvirtd again, with an identity of its own.
func (h *Host) acceptLibvirt(ctx context.Context, number int) error {
	return h.script(ctx, libvirtScript, fmt.Sprint(number))
}

const libvirtScript = `set -e
{ printf 'listen_tls = 0\nlisten_tcp = 1\nauth_tcp = "none"\nauth_unix_rw = "none"\n'
  printf 'host_uuid = "0000abcd-0000-4000-8000-%012x"\n' "$1"; } > /run/libvirtd.conf
pkill -x libvirtd; while pgrep -x libvirtd >/dev/null; do sleep 0.1; done
setsid libvirtd --listen --config /run/libvirtd.conf >/run/libvirtd.log 2>&1 &
until virsh -q list >/dev/null 2>&1; do sleep 0.3; done`

// acceptSSH lets root of each lab log in on all of them without a password. All have one key, which is made here and
// removed with the labs. The programs are Debian's; this machine downloads them once and does not install them.
func acceptSSH(ctx context.Context, hosts ...*Host) error {
	folder, err := fetchOnce(ctx, "ssh", func(fresh string) error {
		return download(ctx, fresh, "openssh-client", "openssh-server", "libwrap0")
	})
	if err != nil {
		return err
	}
	key := filepath.Join(hosts[0].folder, "key")
	made := exec.CommandContext(ctx, filepath.Join(folder, "usr/bin/ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f",
		key)
	if out, err := made.CombinedOutput(); err != nil {
		return fmt.Errorf("making a key for the labs' ssh: %w: %s", err, lastLine(out))
	}
	files := map[string]string{"key": key, "key.pub": key + ".pub", "ssh": filepath.Join(folder, "usr/bin/ssh"),
		"sshd": filepath.Join(folder, "usr/sbin/sshd"), "libwrap.so.0": filepath.Join(folder, libwrap)}
	for i, h := range hosts {
		for name, from := range files {
			if err := copyFile(from, h.share("files", name)); err != nil {
				return err
			}
		}
		if err := h.script(ctx, sshScript); err != nil {
			return fmt.Errorf("ssh in lab %d: %w", i+1, err)
		}
	}
	return nil
}

// libwrap is the library that sshd needs and that few machines have.
const libwrap = "usr/lib/x86_64-linux-gnu/libwrap.so.0"

// sshScript starts sshd. Programs that it starts find what commands of the lab find. The first key exchange of its own
// list takes twice as long in the lab.
const sshScript = `set -e
rm -rf /root/.ssh /root/.bashrc # this machine's own; bash reads the second one for each command that ssh runs
install -d -m 700 /root/.ssh /run/sshd
grep -q ^sshd: /etc/passwd || echo 'sshd:x:74:65534::/run/sshd:/usr/sbin/nologin' >> /etc/passwd
cp /lab/files/libwrap.so.0 /` + libwrap + `
install -m 755 /lab/files/ssh /lab/files/sshd /run/lab/bin/
install -m 600 /lab/files/key /root/.ssh/id_ed25519; install -m 600 /lab/files/key.pub /root/.ssh/authorized_keys
printf 'lab1,lab2 %s\n' "$(cut -d ' ' -f 1,2 /lab/files/key.pub)" > /root/.ssh/known_hosts
printf '%s\n' 'HostKey /root/.ssh/id_ed25519' 'PermitRootLogin yes' 'PidFile /run/sshd.pid' \
  'KexAlgorithms curve25519-sha256' "SetEnv PATH=$PATH" > /run/sshd.conf
! ldd /run/lab/bin/sshd | grep 'not found' >&2
/run/lab/bin/sshd -D -f /run/sshd.conf -E /run/sshd.log &
until [ -e /run/sshd.pid ]; do sleep 0.1; done`
