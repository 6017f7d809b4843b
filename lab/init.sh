#!/bin/busybox sh
# First process of the lab: mounts the machine's root file system, read-only
# over 9p below a memory file system, and enters it.
export PATH=/bin; /bin/busybox --install -s /bin
mount -t proc none /proc; mount -t sysfs none /sys; mount -t devtmpfs none /dev
cd /mod
# virtio_ring before virtio, which needs it; virtio once more for kernels where it is the other way round.
for m in virtio virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci netfs fscache 9pnet 9pnet_virtio 9p overlay; do insmod $m.ko 2>/dev/null; done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,ro,cache=loose rootfs /root || { dmesg | tail; poweroff -f; }
mount -t tmpfs none /ov; mkdir /ov/u /ov/w
mount -t overlay -o lowerdir=/root,upperdir=/ov/u,workdir=/ov/w none /new
mount --move /proc /new/proc; mount --move /sys /new/sys; mount --move /dev /new/dev
mount -t tmpfs none /new/run; mount -t tmpfs none /new/tmp; mkdir -p /new/dev/pts /new/lab; mount -t devpts none /new/dev/pts
mount -t cgroup2 none /new/sys/fs/cgroup
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none lab /new/lab
exec chroot /new /bin/bash /lab/start.sh
