package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const events = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestLabA"}
{"Action":"output","Package":"p","Test":"TestLabA","Output":"x\n"}
{"Action":"pass","Package":"p","Test":"TestLabA/one","Elapsed":1}
{"Action":"pass","Package":"p","Test":"TestLabA","Elapsed":90}
{"Action":"skip","Package":"p","Test":"TestLabB","Elapsed":0}
{"Action":"fail","Package":"p","Test":"TestLabC/two","Elapsed":3}
{"Action":"fail","Package":"p","Test":"TestLabC","Elapsed":30}
{"Action":"fail","Package":"p","Elapsed":120}
`

func read(t *testing.T, text string) results {
	t.Helper()
	r, err := readResults(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestReadResults_KeepsHowTestsEnded(t *testing.T) {
	r := read(t, events)
	if diff := cmp.Diff([]string{"TestLabC"}, r.failedTests()); diff != "" {
		t.Errorf("failed (-want +got):\n%s", diff)
	}
	if !r.passed("TestLabA") || r.passed("TestLabB") || r.passed("TestLabC") {
		t.Errorf("passed is wrong: %+v", r)
	}
	if took := r.tests[1].took; took != 90*time.Second {
		t.Errorf("TestLabA took %v", took)
	}
	if _, err := readResults(strings.NewReader("no JSON\n")); err == nil {
		t.Error("broken events are accepted")
	}
}

func TestRepeatable_OnlyAfterAProvenFaultOfTheEmulator(t *testing.T) {
	const buildFailed = `{"Action":"fail","Package":"p","Elapsed":0}`
	for _, c := range []struct {
		about, events string
		faulty        []string
		want          bool
	}{
		{"its emulator failed", events, []string{"TestLabC"}, true},
		{"an ordinary failure", events, nil, false},
		{"another test's emulator failed", events, []string{"TestLabA"}, false},
		{"too many faults", events, []string{"TestLabA", "TestLabB", "TestLabC", "TestLabD"}, false},
		{"no test failed", buildFailed, nil, false},
	} {
		if got := repeatable([]outcome{{results: read(t, c.events)}}, c.faulty); got != c.want {
			t.Errorf("%s: %v", c.about, got)
		}
	}
	crashed, broken := outcome{results: read(t, events)}, outcome{results: read(t, buildFailed)}
	if repeatable([]outcome{crashed, broken}, []string{"TestLabC"}) {
		t.Error("one turn failed without a failed test, and the other turn's tests would be repeated as if it had passed")
	}
}

func TestTurnsOf_XenRunsAlone(t *testing.T) {
	groups := map[string]string{"TestLabA": "lab/a", "TestLabXen": "lab/e2e/xen", "TestLabXenDaemon": "lab/e2e/xen",
		"TestShape": "lab/shape"}
	others := turn{name: "first", skip: "^TestLabXen", labs: labsAtOnce()}
	xen := turn{name: "xen", pattern: "^(TestLabXen|TestLabXenDaemon)$", labs: 1}
	for pattern, want := range map[string][]turn{
		"Lab":              {others, xen},
		"^TestLabXen":      {xen},
		"^TestLabA$/x":     {others},
		"^TestLabXen$/one": {{name: "xen", pattern: "^(TestLabXen)$/one", labs: 1}},
	} {
		for i := range want {
			if want[i].name == "first" {
				want[i].pattern = pattern
			}
		}
		got, err := turnsOf(groups, pattern)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(turn{})); diff != "" {
			t.Errorf("-run %s (-want +got):\n%s", pattern, diff)
		}
	}
	for _, pattern := range []string{"TestLabNone", "("} {
		if turns, err := turnsOf(groups, pattern); err == nil {
			t.Errorf("-run %s: %v", pattern, turns)
		}
	}
}

func TestPrintTable_SumsByGroup(t *testing.T) {
	var out bytes.Buffer
	printTable(&out, read(t, events),
		map[string]string{"TestLabA": "lab/e2e/a", "TestLabB": "lab/e2e/a", "TestLabC": "lab/c"})
	want := `
GROUP                          TESTS  OTHERS  MINUTES  LONGEST
lab/e2e/a                          1       1      1.5  TestLabA 90 s
lab/c                              1       0      0.5  TestLabC 30 s
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestGroupsOfTests_AreTheirFiles(t *testing.T) {
	groups, err := groupsOfTests("..")
	if err != nil || groups["TestLabRepairsDrift"] != "../e2e/bind" {
		t.Errorf("%q, %v", groups["TestLabRepairsDrift"], err)
	}
}
