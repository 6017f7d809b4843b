# Runs once in each lab, after a boot or a restore: a mounted 9p file system
# cannot be part of a saved lab.
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none lab /lab || exit
[ -d /lab/share ] && { mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none share /lab/share || exit; }
# Programs start from memory: over 9p every start would read them whole again.
cp -r /lab/bin /run/lab/
