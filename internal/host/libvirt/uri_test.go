package libvirt

import (
	"errors"
	"testing"
)

func TestCheckLocal_TakesURIsOfThisHost(t *testing.T) {
	for _, uri := range []string{
		"qemu:///system", "qemu:///session", "qemu+unix:///system",
		"qemu+unix:///system?socket=/run/libvirt/libvirt-sock",
		"test:///default", "test:///etc/host.xml", "xen:///system", "qemu:///embed?root=/srv/embed",
	} {
		if err := CheckLocal(uri); err != nil {
			t.Errorf("%s: %v", uri, err)
		}
	}
}

func TestCheckLocal_RefusesURIsOfOtherHosts(t *testing.T) {
	for _, uri := range []string{
		"qemu+ssh://root@far.example/system", "qemu://far.example/system", "qemu+tls://10.0.0.7/system", "xen://far/",
		"esx://far/",
		"qemu+tcp:///system", "qemu+ext:///system?command=/opt/tunnel", "qemu+libssh2:///system",
		"test+ssh://far/default",
		"qemu+unix://far/system", "QEMU+SSH://far/system",
	} {
		if err := CheckLocal(uri); !errors.Is(err, ErrOtherHost) {
			t.Errorf("%s: error %v, want ErrOtherHost", uri, err)
		}
	}
	for _, uri := range []string{"far", "far:22", "qemu:system", "%zz", "//far/system"} {
		if CheckLocal(uri) == nil {
			t.Errorf("%s is accepted as a URI of this host", uri)
		}
	}
}
