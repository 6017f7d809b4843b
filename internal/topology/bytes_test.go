package topology

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]Bytes{
		"16G": 16 * GiB, "16GiB": 16 * GiB, "1.5 GiB": 3 * GiB / 2, "2048k": 2 * MiB, "4096": 4096, "0": 0,
		"512 MB": 512 * MiB,
		"1t":     TiB, " 3m ": 3 * MiB, "7 bytes": 7, "7b": 7, "18446744073709551615": math.MaxUint64, "0.5K": 512,
	} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "G", "-1", "1X", "16 G B", "1e400", "NaN", "inf", "17179869184G",
		"18446744073709551616", "1,5G", "0x10"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("ParseBytes(%q) = %d; want an error", text, got)
		} else if !strings.Contains(err.Error(), "size") {
			t.Errorf("ParseBytes(%q): %v does not name the field's kind", text, err)
		}
	}
}

func TestParseSize_NeedsAUnit(t *testing.T) {
	for text, want := range map[string]Bytes{"16G": 16 * GiB, "4096B": 4096, " 1.5 GiB ": 3 * GiB / 2, "0": 0, "0M": 0,
		"00": 0, "0.0": 0} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for text, says := range map[string]string{
		"4096": "give a unit, such as 4096MiB", " 16 ": "such as 16MiB", "1.5": "such as 1.5MiB",
		"68719476736": "such as 68719476736B", "1e3": "such as 1e3MiB", "lots": "unknown unit",
		"1X": "not an amount",
	} {
		if got, err := ParseSize(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("ParseSize(%q) = %d, %v; want an error with %q", text, got, err, says)
		}
	}
}

func TestBytesString(t *testing.T) {
	for b, want := range map[Bytes]string{
		0: "0 B", 512: "512 B", KiB: "1 KiB", 16 * GiB: "16 GiB", 3 * GiB / 2: "1.5 GiB", 2 * TiB: "2 TiB", MiB +
			1: "1.0 MiB",
	} {
		if got := b.String(); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", uint64(b), got, want)
		}
	}
}

func TestBytesJSON(t *testing.T) {
	var got []Bytes
	if err := json.Unmarshal([]byte(`["16G", 4096, "1.5 GiB"]`), &got); err != nil {
		t.Fatal(err)
	}
	if text, _ := json.Marshal(got); string(text) != "[17179869184,4096,1610612736]" {
		t.Errorf("written as %s", text)
	}
	if json.Unmarshal([]byte(`["much"]`), &got) == nil {
		t.Error("\"much\" is accepted")
	}
}

func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"16G", "1.5 GiB", "2048k", "4096", "1e3", "nan", "-0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		b, err := ParseBytes(text)
		if err != nil {
			return
		}
		if _, err := ParseBytes(b.String()); err != nil {
			t.Fatalf("%q reads as %v, which does not read back: %v", text, b, err)
		}
	})
}
