# The lab's only service: prepares KVM and libvirt, then runs what is put into
# /lab/run as NAME.run, each with its own NAME.out, NAME.err and NAME.rc.
export PATH=/run/lab/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root NUMAVISOR_IN_LAB=1
exec </dev/null
# Programs start from memory: over 9p every start would read them whole again.
mkdir -p /run/lab; cp -r /lab/bin /run/lab/
ip link set lo up; hostname lab
for m in irqbypass ccp kvm kvm-amd; do /sbin/insmod /lab/mod/$m.ko 2>/dev/null; done
# libvirt probes its capabilities for ever if its QEMU user cannot open /dev/kvm.
[ -e /dev/kvm ] && chmod 666 /dev/kvm
[ -d /etc/libvirt ] && printf 'namespaces = []\nuser = "root"\ngroup = "root"\nstdio_handler = "file"\nsecurity_driver = "none"\n' >> /etc/libvirt/qemu.conf
# No polkit here: without this every client starts an agent that complains.
[ -d /etc/libvirt ] && echo 'auth_unix_rw = "none"' >> /etc/libvirt/libvirtd.conf
[ -d /lab/share ] && mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none share /lab/share
cd /lab/run
mkfifo /run/tick; exec 9<>/run/tick
touch /lab/up
one() { # NAME: in a session of its own, so that all of it can be ended
	setsid bash "$1.sh" >"$1.out" 2>"$1.err" </dev/null &
	local leader=$!
	while kill -0 $leader 2>/dev/null; do
		[ -e "$1.kill" ] && { kill -TERM -- -$leader; sleep 1; kill -KILL -- -$leader; }
		read -t 0.2 <&8
	done 2>/dev/null 8<>/run/tick
	wait $leader; echo $? >"$1.tmp"; mv "$1.tmp" "$1.rc"
}
while [ ! -e /lab/off ]; do
	[ $((beat = (beat + 1) % 20)) -eq 1 ] && : >/lab/beat # every two seconds: a lab that locks up is seen outside
	for f in *.run; do
		[ -e "$f" ] || continue
		n=${f%.run}; mv "$f" "$n.sh"; one "$n" 9<&- &
	done
	read -t 0.1 <&9
done
sync; poweroff -f
