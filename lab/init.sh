#!/bin/busybox sh
# First process of the lab: mounts the root file system, read-only below a
# memory file system, and enters it. The root is the machine's own over 9p or,
# where the command line says lab.root=image, the image on the first disk.
export PATH=/bin; /bin/busybox --install -s /bin
mount -t proc none /proc; mount -t sysfs none /sys; mount -t devtmpfs none /dev
cd /mod
# virtio_ring before virtio, which needs it; virtio again for kernels with the opposite order.
for m in virtio virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_console netfs fscache 9pnet 9pnet_virtio 9p overlay; do insmod $m.ko 2>/dev/null; done
if grep -qw lab.root=image /proc/cmdline; then
	for m in virtio_blk crc16 crc32c_generic libcrc32c mbcache jbd2 ext4; do insmod $m.ko 2>/dev/null; done
	n=0; until [ -e /dev/vda ] || [ $n -ge 300 ]; do sleep 0.1; n=$((n + 1)); done
	mount -t ext4 -o ro /dev/vda /root || { dmesg | tail; poweroff -f; }
else
	mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,ro,cache=loose rootfs /root || { dmesg | tail; poweroff -f; }
fi
mount -t tmpfs none /ov; mkdir /ov/u /ov/w
lower=/root
[ -e /xen.tar ] && { mkdir /xen && tar xf /xen.tar -C /xen && rm /xen.tar && lower=/xen:/root; }
mount -t overlay -o lowerdir=$lower,upperdir=/ov/u,workdir=/ov/w none /new
mount --move /proc /new/proc; mount --move /sys /new/sys; mount --move /dev /new/dev
mount -t tmpfs -o mode=0755 none /new/run; mount -t tmpfs none /new/tmp; mkdir -p /new/dev/pts /new/lab; mount -t devpts none /new/dev/pts
mount -t cgroup2 none /new/sys/fs/cgroup
mkdir /new/run/lab; cp -r /mod /start.sh /agent /new/run/lab/
exec chroot /new /bin/bash /run/lab/start.sh
