package topology

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// slowSet is a simple reference implementation of Set.
type slowSet map[CPUID]bool

func drawSet(t *rapid.T, name string) (CPUSet, slowSet) {
	ids := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 130), rapid.IntRange(0, maxID)), 0, 40).Draw(t, name)
	slow := slowSet{}
	var fast []CPUID
	for _, id := range ids {
		slow[CPUID(id)] = true
		fast = append(fast, CPUID(id))
	}
	return SetOf(fast...), slow
}

func (s slowSet) ids() []CPUID { return slices.Sorted(maps.Keys(s)) }

func (s slowSet) keep(want func(CPUID) bool) []CPUID {
	return slices.DeleteFunc(s.ids(), func(id CPUID) bool { return !want(id) })
}

func TestSetAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, x := drawSet(t, "a")
		b, y := drawSet(t, "b")
		both := maps.Clone(x)
		maps.Copy(both, y)
		same := func(op string, got CPUSet, want []CPUID) {
			if !slices.Equal(got.IDs(), want) {
				t.Fatalf("%s: %v, want %v", op, got.IDs(), want)
			}
			if got.Len() != len(want) || got.IsEmpty() != (len(want) == 0) {
				t.Fatalf("%s: Len %d, IsEmpty %v for %v", op, got.Len(), got.IsEmpty(), want)
			}
			if rebuilt := SetOf(want...); !got.Equal(rebuilt) {
				t.Fatalf("%s: not Equal to a set of the same ids", op)
			}
			if again := MustParseSet[CPUID](got.String()); !again.Equal(got) {
				t.Fatalf("%s: %q does not read back", op, got)
			}
		}
		same("a", a, x.ids())
		same("union", a.Union(b), both.ids())
		same("with", a.With(b.IDs()...), both.ids())
		common := x.keep(func(id CPUID) bool { return y[id] })
		same("intersect", a.Intersect(b), common)
		same("minus", a.Minus(b), x.keep(func(id CPUID) bool { return !y[id] }))
		if a.Intersects(b) != (len(common) > 0) {
			t.Fatalf("Intersects is %v for %v", a.Intersects(b), common)
		}
		if a.Common(b) != len(common) {
			t.Fatalf("Common is %d for %v", a.Common(b), common)
		}
		if a.SubsetOf(b) != (len(common) == len(x)) {
			t.Fatalf("SubsetOf is %v: %v in %v", a.SubsetOf(b), a, b)
		}
		same("a, afterwards", a, x.ids()) // operations change nothing
		for _, id := range append(b.IDs(), -1, maxID+1) {
			if a.Contains(id) != x[id] {
				t.Fatalf("Contains(%d) is %v", id, a.Contains(id))
			}
		}
	})
}

func TestParseSet(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "\n": "", "0": "0", "0-3,8\n": "0-3,8", "8,0-3": "0-3,8", "0,1,2": "0-2", "0-10:1/2": "0,2,4,6,8,10",
		"0-9:2/5": "0-1,5-6", " 1 , 3 ": "1,3", "0-127": "0-127", "1-190": "1-190", "63-64": "63-64", "65535": "65535",
		"0-3,7-9,13-15,20-22,52-55,59-61,65-67,72-74": "0-3,7-9,13-15,20-22,52-55,59-61,65-67,72-74",
	} {
		got, err := ParseSet[CPUID](text)
		if err != nil || got.String() != want {
			t.Errorf("ParseSet(%q) = %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{",", "1,", "a", "-1", "3-1", "1-", "1--2", "0x3", "65536", "99999999999999999999",
		"0-10:2/1", "0-10:0/2", "0-10:1", "+1", "1 2"} {
		if got, err := ParseSet[CPUID](text); err == nil {
			t.Errorf("ParseSet(%q) = %q; want an error", text, got)
		} else if !strings.Contains(err.Error(), "list") {
			t.Errorf("ParseSet(%q): %v does not say what is wrong", text, err)
		}
	}
}

func TestSetFirst(t *testing.T) {
	if id, ok := MustParseSet[NodeID]("70-80,9").First(); id != 9 || !ok {
		t.Errorf("First = %d, %v", id, ok)
	}
	if _, ok := (NodeSet{}).First(); ok {
		t.Error("the empty set has a first id")
	}
}

func TestSetJSON(t *testing.T) {
	var got struct {
		A, B CPUSet
		C    CPUSet `json:",omitzero"`
	}
	if err := json.Unmarshal([]byte(`{"A":"0-3,8","B":5}`), &got); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got)
	if want := `{"A":"0-3,8","B":"5"}`; err != nil || string(text) != want {
		t.Errorf("%s, %v; want %s", text, err, want)
	}
	for _, bad := range []string{`{"A":[1]}`, `{"A":-1}`, `{"A":"x"}`, `{"A":70000}`} {
		if err := json.Unmarshal([]byte(bad), &got); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

func TestParseMask(t *testing.T) {
	for text, want := range map[string]string{
		"0": "", "": "", "f": "0-3", "00000000,0000000f": "0-3", "1,00000000": "32", "0x00000100,0x00000001": "0,40",
		"0x00000100,0x0": "40", "0x1,,": "64", "ffffffff,ffffffff,ffffffff\n": "0-95", "80000000": "31",
	} {
		got, err := ParseMask[CPUID](text)
		if err != nil || got.String() != want {
			t.Errorf("ParseMask(%q) = %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"g", "0xf...f", "123456789", "-1", strings.Repeat("0,", 3000)} {
		if got, err := ParseMask[CPUID](text); err == nil {
			t.Errorf("ParseMask(%.20q) = %q; want an error", text, got)
		}
	}
}

func FuzzParseSet(f *testing.F) {
	for _, s := range []string{"", "0-3,8", "0-65535:1/2", "65535", "0-10:1/2,3", "0,2-5,,", "63-64", "511", "512",
		"7,3-5,4-9", "3-1", "1-", "-1", "1--2", "007"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		set, err := ParseSet[CPUID](text)
		full, errFull := ParseSet[CPUID](text + " ") // a space: parsePlain does not read it
		if (err == nil) != (errFull == nil) || !slices.Equal(set.words, full.words) {
			t.Fatalf("%q reads as %q, %v, and with a space as %q, %v", text, set, err, full, errFull)
		}
		if err != nil {
			return
		}
		again, err := ParseSet[CPUID](set.String())
		if err != nil || !again.Equal(set) {
			t.Fatalf("%q reads as %q, which reads as %q, %v", text, set, again, err)
		}
	})
}

func FuzzParseMask(f *testing.F) {
	for _, s := range []string{"", "0x0000ffff,0xffffffff", "f", "1,,", "00000000,00000003"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		set, err := ParseMask[CPUID](text)
		if err != nil {
			return
		}
		if !SetOf(set.IDs()...).Equal(set) {
			t.Fatalf("%q: set with a trailing zero word", text)
		}
	})
}
