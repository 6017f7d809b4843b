package xen

import (
	"errors"
	"strings"
	"testing"
)

// libxl names the cause of a failed 'xl create' first, and then reports how it cleans up.
func TestRunTool_ReportsTheCause(t *testing.T) {
	const script = `echo 'xc: error: panic: xg_dom_boot.c: failed to open /nowhere' >&2
	for i in 1 2 3 4 5 6; do echo "libxl: error: domain_destroy_cb $i" >&2; done
	exit 3`
	_, err := New(nil).runTool(t.Context(), "sh", "-c", script)
	failed := new(FailedError)
	if !errors.As(err, &failed) || failed.Status != 3 {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"/nowhere", "domain_destroy_cb 1", "domain_destroy_cb 6"} {
		if !strings.Contains(failed.Said, want) {
			t.Errorf("%q does not contain %q", failed.Said, want)
		}
	}
	if strings.Contains(failed.Said, "domain_destroy_cb 4") {
		t.Errorf("%q is long", failed.Said)
	}
}
