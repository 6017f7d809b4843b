package xen

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
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

// After a call of xl that hung, the next ones have a fifth of its deadline, until one is answered.
func TestXL_AfterACallThatHung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := true
		d := New(func(ctx context.Context, _ string, _ ...string) ([]byte, error) {
			if hangs {
				<-ctx.Done()
			}
			return nil, ctx.Err()
		})
		for _, want := range []time.Duration{CallTime, CallTime / 5, CallTime / 5, 0, CallTime} {
			hangs = want > 0
			began := time.Now()
			if _, err := d.xl(t.Context(), "list"); errors.Is(err, ErrHangs) != hangs || time.Since(began) != want {
				t.Errorf("%v after %v, want it after %v", err, time.Since(began), want)
			}
		}
	})
}
