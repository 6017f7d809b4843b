package libvirt

import "testing"

const mountinfo = `22 1 252:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
40 22 0:35 / /mnt/vm\040images rw - nfs4 store:/images rw
41 22 0:36 / /mnt/odd rw - fuse.odd odd rw
42 40 0:37 / /mnt/vm\040images/scratch rw shared:2 master:1 - xfs /dev/vdb rw
`

func TestSharedStorage(t *testing.T) {
	at := parseMounts(mountinfo)
	file := func(path string) string {
		return `<disk type='file'><source file='` + path + `'/><target dev='vda'/></disk>`
	}
	for _, c := range []struct{ name, devices, want string }{
		{"diskless", "", "shared"},
		{"local", file("/var/lib/a.img"), "local"},
		{"network file system", file("/mnt/vm images/a.img"), "shared"},
		{"a local one mounted below it", file("/mnt/vm images/scratch/a.img"), "local"},
		{"a name that only begins like it", file("/mnt/vm images2/a.img"), "local"},
		{"a file system that is not known", file("/mnt/odd/a.img"), "unknown"},
		{"shared and not known", file("/mnt/vm images/a.img") + file("/mnt/odd/a.img"), "unknown"},
		{"not known and local", file("/mnt/odd/a.img") + file("/a.img"), "local"},
		{"network", `<disk type='network'><source protocol='rbd' name='p/a'/></disk>`, "shared"},
		{"block", `<disk type='block'><source dev='/dev/mapper/lun1'/></disk>`, "unknown"},
		{"read only", `<disk type='file'><source file='/a.iso'/><readonly/></disk>`, "shared"},
		{"empty drive", `<disk type='file' device='cdrom'><target dev='sda'/></disk>`, "shared"},
		{"folder of the host", `<filesystem><source dir='/srv'/><target dir='t'/></filesystem>`, "local"},
		{"relative path", file("a.img"), "unknown"},
	} {
		doc, err := parse([]byte("<domain><devices>" + c.devices + "</devices></domain>"))
		if err != nil {
			t.Fatal(err)
		}
		got := "unknown"
		if shared := sharedStorage(doc.root, at.reach); shared != nil {
			got = map[bool]string{true: "shared", false: "local"}[*shared]
		}
		if got != c.want {
			t.Errorf("%s: %s, not %s", c.name, got, c.want)
		}
	}
}

// Files on a file system of this host alone are reached by no other host; nothing is known of paths that are none.
func TestSharedPaths(t *testing.T) {
	if got := SharedPaths([]string{"not/absolute"}); got != nil {
		t.Errorf("a relative path: %v", *got)
	}
	if got := SharedPaths(nil); got == nil || !*got {
		t.Errorf("no path: %v, want true", got)
	}
}
