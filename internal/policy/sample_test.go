package policy_test

import (
	"bytes"
	"os"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/numavisor/numavisor/internal/policy"
)

// The packages' policy shows every setting with its default, commented out.
func TestSamplePolicy_ShowsTheDefaults(t *testing.T) {
	sample, err := os.ReadFile("../../deploy/packages/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	parse := func(text []byte) policy.Policy {
		t.Helper()
		p, err := policy.Parse(bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		return p
	}
	if diff := cmp.Diff(policy.Policy{}, parse(sample)); diff != "" {
		t.Errorf("the sample as it is installed sets fields (-empty +sample):\n%s", diff)
	}
	// A comment has one blank after '#', a setting has none, or more than one.
	settings := regexp.MustCompile(`(?m)^#([a-z]|  )`).ReplaceAll(sample, []byte("$1"))
	want, got := policy.Policy{}.WithDefaults(), parse(settings).WithDefaults()
	want.Alarms = policy.AlarmDefaults()
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("a setting of the sample is not the default (-default +sample):\n%s", d)
	}
}
