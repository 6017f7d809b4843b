# Prepares KVM and libvirt, and becomes the agent, which runs the lab's commands.
export PATH=/run/lab/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root NUMAVISOR_IN_LAB=1
exec </dev/null
ip link set lo up; hostname lab
if [ -e /proc/xen ]; then # Xen's first domain
	for m in xen-privcmd xen-evtchn xen-gntdev xen-gntalloc xenfs; do /sbin/insmod /run/lab/mod/$m.ko 2>/dev/null; done
	mount -t xenfs none /proc/xen; mkdir -p /run/xen /run/xenstored /var/lib/xenstored /var/lib/xen /var/log/xen/console
	tools=$(sh /usr/lib/xen-common/bin/xen-dir)/bin
	"$tools/oxenstored" --pid-file /run/xenstored.pid
	n=0; until "$tools/xen-init-dom0" >/run/xen-init-dom0.log 2>&1 || [ $n -ge 60 ]; do sleep 1; n=$((n + 1)); done
	"$tools/xenconsoled" --log=guest --log-dir=/var/log/xen/console --pid-file=/run/xenconsoled.pid
fi
for m in irqbypass ccp kvm kvm-amd; do /sbin/insmod /run/lab/mod/$m.ko 2>/dev/null; done
# libvirt probes its capabilities for ever if its QEMU user cannot open /dev/kvm.
[ -e /dev/kvm ] && chmod 666 /dev/kvm
[ -d /etc/libvirt ] && printf 'namespaces = []\nuser = "root"\ngroup = "root"\nstdio_handler = "file"\nsecurity_driver = "none"\n' >> /etc/libvirt/qemu.conf
# There is no polkit: without this setting every client starts an agent that prints errors.
[ -d /etc/libvirt ] && echo 'auth_unix_rw = "none"' >> /etc/libvirt/libvirtd.conf
exec /run/lab/agent
